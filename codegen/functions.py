"""A C file with several functions: recursion, data, and memory that is measured while the call runs.

``UnitPrinter`` prints a program that has any of these: a header with the data types, a ``static`` C function for each
recursive function, and the model's own. Each function's body is planned by ``lower.plan`` and printed as any other.

*Results.* One scalar is returned, several come back in a small struct (two of them in registers); an array goes where
the caller says. An array parameter that a function changes and gives back (``paired``: an adjoint that is accumulated
through a recursion) is changed in the caller's memory.

*Tail calls* of the function itself are jumps, and so is ``(cons x (f l))``: the cell is made first, and the next round
fills its hole (destination passing; Minamide, "A functional representation of data structures with a hole", 1998).

*Memory.* What cannot be measured before the call is in the caller's ``hyad_arena``: a list of blocks from which cells
and arrays are cut one after the other. What a call leaves there that is no result is taken back at its end. A failed
check, a stack that is used up and memory that is used up leave by ``longjmp`` to the model's own function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hyad.core import (
    Apply,
    Arr,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    Function,
    If,
    Make,
    Program,
    Var,
    While,
    all_binds,
    as_program,
    blocks_of,
    functions_of,
)

from .arena import ARENA_ARRAY, ARENA_BASE, ARENA_COPY, ARENA_FAIL, ARENA_GROW, ARENA_HEADER, ARENA_NAMES, DEEP
from .c import FUNCTION_RESERVED, RESERVED, CPrinter
from .cfunction import CConstructor, CData, CFunction, CParam
from .comments import Comments, commented, outline
from .data import ctypes, declared, definitions, handed_down, reachable, without_unused
from .expressions import PRIMARY, WIDTH, Expr, as_reals, wrapped
from .identifiers import WORD, Names
from .lower import Buffer, Plan, measured, plan, type_of
from .paired import paired

ROOM = 32  # elements of the stack for a function's local arrays: recursion multiplies them


# -------------------------------------------------------------------------------------------- the file


@dataclass(slots=True)
class Info:
    """How a function is called: its C name, the struct of its results and their names in it, whether it takes the
    arena."""

    name: str
    labels: list[str]
    struct: str | None
    arena: bool = False
    leaves: bool = False  # whether memory that it takes stays taken


class Unit:
    """What the functions of a file share: the data types, each other, the checks, and what of the arena they use."""

    def __init__(
        self,
        program: Program,
        dtype: str,
        name: str,
        line_directives: bool = False,
        math: str = "libm",
        keywords: frozenset[str] = frozenset(),
    ):
        self.dtype, self.line_directives, self.math = dtype, line_directives, math
        self.names = Names(FUNCTION_RESERVED | ARENA_NAMES | keywords)
        self.names.taken.add(name)
        outside = [p.type for p in program.params] + [type_of(r) for r in program.body.results]
        self.types: dict[Data, CData] = ctypes(
            program, self.names, RESERVED | keywords, reachable(outside), bool(keywords)
        )
        called = frozenset(t.name for t in self.types.values())
        self.handed_down = handed_down(program)
        self.order = functions_of(program.body)
        self.pairs = paired(self.order)
        self.functions: dict[Function, Info] = {}
        for f in self.order:
            labels = Names(RESERVED | keywords | (called if keywords else frozenset()))
            inside = [k for k in range(len(f.results)) if self.returned(f, k)]
            name = self.names.fresh(f.name)
            struct = self.names.fresh(f"{name}_results") if len(inside) > 1 else None
            self.functions[f] = Info(name, [labels.fresh(r.name) for r in f.results], struct)
        self.makers: dict[tuple[str, str], str] = {}
        self.empties: dict[tuple[str, str], str] = {}
        self.stable: set[Buffer] = set()
        self.checks: list[tuple[str, str, Any]] = []
        self.support: dict[str, None] = {}
        self.copies = self.grows = False
        self.components = components(self.order)

    def returned(self, f: Function, k: int) -> bool:
        """Whether a result comes back from the C function, and not through memory of the caller's."""
        return not measured(f, k)

    def needs(self, printers: list[FunctionPrinter]) -> None:
        """Find the functions that take the arena."""
        for p in printers:
            self.functions[p.f].arena = p.needs_arena()
            self.functions[p.f].leaves = p.keeps()
        changed = True
        while changed:
            changed = False
            for p in printers:
                info = self.functions[p.f]
                if not info.arena and any(self.functions[c.op.function].arena for c in p.calls()):
                    info.arena = changed = True

    def heads(self, printers: list[FunctionPrinter]) -> list[str]:
        """The structs of the functions' results, and, where one calls another, their prototypes."""
        out = [line for p in printers for line in p.struct_text()]
        if len(printers) > 1:
            out += [line for p in printers for line in wrapped(p.prototype_text() + ";", WIDTH)]
        return out

    def maker(self, data: CData, c: CConstructor) -> str:
        key = (data.name, c.name)
        if key not in self.makers:
            self.makers[key] = self.names.fresh(f"new_{data.tag(c)}")
        return self.makers[key]

    def use_empty(self, data: CData, c: CConstructor) -> None:
        if not c.null:
            tag = f"{{.tag = {data.tag(c)}}}" if data.tagged else "{0}"
            text = f"static const struct {data.cell} {data.tag(c)}_cell = {tag};"
            self.empties[data.name, c.name] = text

    def makers_text(self) -> list[str]:
        """A function for each constructor that is used."""
        out = []
        by_name = {t.name: t for t in self.types.values()}
        for (owner, label), name in self.makers.items():
            data = by_name[owner]
            c = next(c for c in data.constructors if c.name == label)
            # a parameter that is called as a type would hide it from those after it
            own = Names({"arena", *(t.name for t in self.types.values())})
            given = [own.fresh(f.name) for f in c.fields]
            cell = own.fresh("cell")
            params = ", ".join(
                ["hyad_arena *arena", *(declared(replace(f, name=x), self.dtype) for f, x in zip(c.fields, given))]
            )
            out += wrapped(f"static inline struct {data.cell} *{name}({params})", WIDTH)
            size = f"sizeof(struct {data.cell})"
            if data.tagged and sum(1 for c in data.constructors if c.fields) > 1:
                size = f"offsetof(struct {data.cell}, as) + sizeof {cell}->as.{c.name}"
            out += ["{", f"    struct {data.cell} *{cell} = hyad_alloc(arena, {size});"]
            if data.tagged:
                out.append(f"    {cell}->tag = {data.tag(c)};")
            out += [f"    {data.member(c, cell, f.name)} = {x};" for f, x in zip(c.fields, given)]
            out += [f"    return {cell};", "}"]
        return out


def components(functions: list[Function]) -> dict[Function, int]:
    """The strongly connected component of each function: those that call each other, directly or not."""
    calls = {f: set(functions_of(f.body)) for f in functions}  # transitive already
    number: dict[Function, int] = {}
    for f in functions:
        if f not in number:
            for g in functions:
                if g is f or (g in calls[f] and f in calls[g]):
                    number[g] = len(number) if g is f else number.get(f, len(number))
            for g in functions:
                if g is not f and g in calls[f] and f in calls[g]:
                    number[g] = number[f]
    return number


class FunctionPrinter(CPrinter):
    """Prints one recursive function."""

    def __init__(self, f: Function, unit: Unit):
        self.f, self.unit = f, unit
        options = dict(dtype=unit.dtype, line_directives=unit.line_directives, math=unit.math)
        super().__init__(as_program(f), name=f.name, **options)
        self.name = unit.functions[f].name
        self.names.taken |= unit.names.taken | ARENA_NAMES
        self.checks, self.support = unit.checks, unit.support
        self.jumps: set[Bind] = set()  # tail calls of the function itself
        self.holes: dict[Bind, Bind] = {}  # a cell made around such a call
        self.chain_of: dict[Block, tuple[Block, ...]] = {}
        self.find_jumps(self.program.body)
        self.first = self.hole = ""
        self.guard: tuple[str, int] | None = None  # the test of the stack that is still to be made

    def planned(self, program: Program) -> Plan:
        own = {k: program.params.index(self.f.params[j]) for k, j in self.unit.pairs[self.f].items()}
        lent = [k for k, r in enumerate(self.f.results) if isinstance(r.type, Arr) and not measured(self.f, k)]
        return plan(program, self.unit.pairs, own, lent, ROOM)

    def failed(self, number: int) -> str:
        return f"hyad_fail(arena, {number});"

    # ------------------------------------------------------------------------------ tail calls

    def find_jumps(self, block: Block) -> None:
        """The calls in tail position that can be jumps, and the cells made around one."""
        makes = (b for b in all_binds(block) if isinstance(b.op, Make) and b.op.args)
        self.on_stack = {b.vars[0] for b in makes if b.op.constructor.data in self.unit.handed_down}
        todo = [block]
        while todo:
            b = todo.pop()
            last = b.binds[-1] if b.binds else None
            if last is None or not last.vars or last.vars != b.results:
                continue
            op = last.op
            if isinstance(op, (If, Case)):
                todo += blocks_of(op)
            elif isinstance(op, Apply) and self.eligible(last, op):
                self.jumps.add(last)
            elif isinstance(op, Make) and len(self.f.results) == 1:
                own = [bind for bind in b.binds if isinstance(bind.op, Apply) and self.eligible(bind, bind.op)]
                calls = {bind.vars[0]: bind for bind in own if self.uses.get(bind.vars[0]) == 1}
                inner = [a for a in op.args if a in calls]
                if inner and op.constructor.data is self.f.results[0].type:
                    self.holes[last] = calls[inner[-1]]
        self.moving = {
            self.plan.place[p].buffer
            for bind in (*self.jumps, *self.holes.values())
            for p, a in zip(self.f.params, bind.op.args)
            if isinstance(p.type, Arr) and a is not p
        }

    def eligible(self, bind: Bind, op: Apply) -> bool:
        """Whether a call of the function itself can be a jump: its arrays, and what is on the stack, outlive this
        round."""
        if op.function is not self.f:
            return False
        if any(a in self.on_stack for a in op.args):
            return False
        pairs = self.unit.pairs[self.f]
        for j, (p, a) in enumerate(zip(self.f.params, op.args)):
            if not isinstance(p.type, Arr) or a is p:
                continue
            place = self.plan.of(a)
            if j in pairs.values():
                if place.subs or place.buffer is not self.plan.place[p].buffer:
                    return False
            elif self.plan.resolve(place)[0].kind not in ("param", "cell", "table"):
                return False
        for k, v in enumerate(bind.vars):
            if isinstance(v.type, Arr) and measured(self.f, k):
                root, subs, _ = self.plan.resolve(self.plan.of(v))
                if subs or root is not self.plan.results[k]:
                    return False
        return True

    @property
    def loops(self) -> bool:
        return bool(self.jumps or self.holes)

    # ------------------------------------------------------------------------- what it needs

    def calls(self) -> list[Bind]:
        return [bind for bind in all_binds(self.program.body) if isinstance(bind.op, Apply)]

    def guarded(self) -> bool:
        """Whether it may call itself again, so that the stack grows."""
        return self.recurs(self.program.body.binds)

    def recurs(self, binds: Sequence[Bind]) -> bool:
        """Whether some operations make the stack grow."""
        jumps = self.jumps | set(self.holes.values())
        own = self.unit.components[self.f]
        inner = [x for bind in binds for x in (bind, *(y for block in blocks_of(bind.op) for y in all_binds(block)))]
        calls = [x for x in inner if isinstance(x.op, Apply) and x not in jumps]
        return any(self.unit.components[c.op.function] == own for c in calls)

    def allocates(self) -> bool:
        cells = any(self.celled(b.op) for b in all_binds(self.program.body))
        grown = any(isinstance(b.op, While) and len(b.vars) > len(b.op.accs) + 1 for b in all_binds(self.program.body))
        arrays = any(buffer.arena for held in self.plan.declare.values() for buffer in held)
        return cells or grown or arrays or bool(self.plan.pools) or self.lends()

    def lends(self) -> bool:
        """Whether it gives an array whose size its caller does not know."""
        return any(isinstance(r.type, Arr) and not measured(self.f, k) for k, r in enumerate(self.f.results))

    def needs_arena(self) -> bool:
        checks = any(isinstance(b.op, Check) for b in all_binds(self.program.body))
        return checks or bool(self.overflows.checked) or self.allocates() or self.guarded()

    def keeps(self) -> bool:
        """Whether what it allocates is in what it gives."""
        types = [r.type.elem if isinstance(r.type, Arr) else r.type for r in self.f.results]
        return self.lends() or any(isinstance(t, Data) for t in types)

    # ---------------------------------------------------------------------------------- the text

    def prototype_text(self) -> str:
        f, info = self.f, self.unit.functions[self.f]
        pairs = self.unit.pairs[f]
        parts = ["hyad_arena *arena"] if info.arena else []
        for j, p in enumerate(f.params):
            name = self.param_name[p]
            if not isinstance(p.type, Arr):
                parts.append(f"{self.ctype(p.type)} {name}")
            elif j in pairs.values():
                parts.append(f"{self.ctype(p.type.elem)} *restrict {name}")
            else:
                restrict = "" if self.plan.place[p].buffer in self.moving else "restrict "
                parts.append(f"const {self.ctype(p.type.elem)} *{restrict}{name}")
        for k, r in enumerate(f.results):
            if measured(f, k) and k not in pairs:
                parts.append(f"{self.ctype(r.type.elem)} *restrict {self.buffer_name[self.plan.results[k]]}")
        return f"static {self.returns()} {info.name}({', '.join(parts) or 'void'})"

    def returns(self) -> str:
        info = self.unit.functions[self.f]
        if info.struct is not None:
            return f"struct {info.struct}"
        inside = [r for k, r in enumerate(self.f.results) if self.unit.returned(self.f, k)]
        return self.result_type(inside[0]) if inside else "void"

    def result_type(self, r: Var) -> str:
        return f"const {self.ctype(r.type.elem)} *" if isinstance(r.type, Arr) else self.ctype(r.type)

    def struct_text(self) -> list[str]:
        info = self.unit.functions[self.f]
        if info.struct is None:
            return []
        fields = [
            f"{self.result_type(r)} {info.labels[k]};"
            for k, r in enumerate(self.f.results)
            if self.unit.returned(self.f, k)
        ]
        return [f"struct {info.struct} {{ {' '.join(fields)} }};"]

    def define_params(self) -> None:
        changed = {
            p for bind in (*self.jumps, *self.holes.values()) for p, a in zip(self.f.params, bind.op.args) if a is not p
        }
        self.param_name = {}
        for p in self.f.params:
            name = self.param_name[p] = self.names.fresh(p.name)
            if isinstance(p.type, Arr):
                self.buffer_name[self.plan.place[p].buffer] = name
            else:
                self.value[p] = Expr(name, PRIMARY, frozenset({name}) if p in changed else frozenset())
                if p in changed:
                    self.slot[p] = name
        for k, r in enumerate(self.f.results):
            if measured(self.f, k) and k not in self.unit.pairs[self.f]:
                self.buffer_name[self.plan.results[k]] = self.names.fresh(r.name)

    def text(self) -> list[str]:
        """The whole function."""
        body, f = self.program.body, self.f
        info = self.unit.functions[f]
        self.releases = self.allocates() and not self.keeps()
        self.offsets, total = self.layout()
        if self.releases:
            self.marked = self.names.fresh("mark")
            self.emit(self.mark(self.marked))
        if self.plan.pools:
            taken = f"{self.cast(self.real())}hyad_room(arena, {as_reals(total)}, sizeof({self.real()}))"
            self.emit(f"{self.real()} *const work = {taken};")
            self.unless_failed()
        if self.guarded():
            self.guard = self.names.fresh("here"), self.deep_check()
        if self.holes:
            kind = self.ctype(f.results[0].type)
            self.first, self.hole = self.names.fresh("first"), self.names.fresh("hole")
            self.emit(f"{kind} {self.first}, *{self.hole} = &{self.first};")
        if self.loops:
            self.emit("for (;;) {")
            self.depth += 1
        self.tail(body, ())
        if self.loops:
            if self.lines[-1].text == "continue;":
                self.lines.pop()
            self.depth -= 1
            self.emit("}")
        shown = self.shown(without_unused(self.lines))
        lines = Comments(self.program, self.line_directives).text(shown)
        head = wrapped(self.prototype_text(), WIDTH)
        form = commented(outline(f.span.text, 90), 90) if f.span is not None else ""
        words = set(WORD.findall("\n".join(line.text for line in shown)))
        names = [*self.param_name.values(), *(["arena"] if info.arena else [])]
        names += [self.buffer_name[b] for k, b in enumerate(self.plan.results) if b is not None]
        silence = [f"    (void){name};" for name in dict.fromkeys(names) if name not in words]
        tables = [f"    {t}" for t in self.tables]
        return [*([f"/* {form} */"] if form else []), *head, "{", *tables, *silence, *lines, "}"]

    def real(self) -> str:
        return "double" if self.dtype == "f64" else "float"

    def check_stack(self) -> None:
        """The test that the stack has room, where that was not tested yet."""
        if self.guard is not None:
            (here, number), self.guard = self.guard, None
            self.emit(f"char {here};")
            self.emit(f"if ({self.too_deep(here)}) {self.failed(number)}")

    def too_deep(self, here: str) -> str:
        """Whether what lies on the stack where ``here`` does is too much."""
        return f"(size_t)&{here} < arena->floor"

    def deep_check(self) -> int:
        """The number of the check that the stack has room."""
        self.checks.append(("depth", DEEP, self.f.span))
        return len(self.checks)

    def tail(self, block: Block, outer: tuple[Block, ...]) -> None:
        """A block whose results are the function's."""
        last = block.binds[-1] if block.binds else None
        chain = (block, *outer)
        ends = last is not None and last.vars == block.results and isinstance(last.op, (If, Case))
        if self.guard is not None and self.recurs(block.binds[:-1] if ends else block.binds):
            self.check_stack()  # here and no earlier: a call that does not recur is short, and often inlined
        if last is None or last.vars != block.results or not last.vars:
            self.statements(block, {})
            self.leaf(block, chain)
        elif last in self.jumps:
            self.statements(block, {}, block.binds[:-1])
            self.span = last.span
            self.jump(last)
        elif last in self.holes:
            call = self.holes[last]
            self.statements(block, {}, [b for b in block.binds[:-1] if b is not call])
            self.span = last.span
            self.fill_hole(last, call)
        elif isinstance(last.op, (If, Case)):
            self.statements(block, {}, block.binds[:-1])
            self.span = last.span
            for buffer in self.plan.declare.get(last, ()):
                self.declare(buffer, last)
            self.choose(last, chain)
        else:
            self.statements(block, {})
            self.leaf(block, chain)

    def choose(self, bind: Bind, chain: tuple[Block, ...]) -> None:
        """A branch that ends the function on every path."""
        op = bind.op
        if isinstance(op, If):
            cond = self.operand(op.cond).text
            self.flush_all()
            arms = [(cond, op.then, None), ("", op.orelse, None)]
        else:
            assert isinstance(op, Case)
            base = self.scrutinee(op)
            self.flush_all()
            data = self.unit.types[op.arms[0].constructor.data]
            order = sorted(range(len(op.arms)), key=lambda k: not data.constructors[k].null)
            arms = [
                (
                    data.test(data.constructors[k], base.at(PRIMARY)),
                    op.arms[k].block,
                    lambda k=k: self.fields(op, k, base),
                )
                for k in order
            ]
        span, guard = bind.span, self.guard
        for number, (test, block, before) in enumerate(arms):
            last, self.guard = number == len(arms) - 1, guard
            if not last:
                self.span = span
                self.emit(f"if ({test}) {{")
                self.enter()
            if before is not None:
                before()
            self.tail(block, chain)
            if not last:
                self.leave()
                self.emit("}", span)

    def leaf(self, block: Block, chain: tuple[Block, ...]) -> None:
        """The end of a path: the results."""
        f, info = self.f, self.unit.functions[self.f]
        texts = {}
        for k, r in enumerate(block.results):
            if not self.unit.returned(f, k):
                continue
            if not isinstance(f.results[k].type, Arr):
                texts[k] = self.as_type(r, f.results[k].type)
            else:
                texts[k] = Expr(self.lasting(r, last=True))
        spans = [self.made.get(r) for r in block.results]
        self.flush_all()
        for b in chain:
            self.move(b)
        span = next((s for s in spans if s is not None), self.span)
        if not texts:
            self.end(None, span)
        elif info.struct is None:
            (expr,) = texts.values()
            self.end(expr.text, span)
        else:
            self.end(self.struct_value(info.struct, [e.text for e in texts.values()]), span)

    def struct_value(self, struct: str, values: Sequence[str]) -> str:
        """The results in their struct."""
        return f"(struct {struct}){{{', '.join(values)}}}"

    def end(self, value: str | None, span: Any) -> None:
        """``return``, with the memory of this call given back."""
        if self.releases:
            if value is not None and not re.fullmatch(r"[\w.]+", value):
                name = self.names.fresh("result")
                self.emit(f"const {self.returns()} {name} = {value};", span)
                value = name
            self.emit(self.release(self.marked), span)
        if self.hole:
            self.emit(f"*{self.hole} = {value};", span)
            value = self.first
        self.emit(f"return {value};" if value is not None else "return;", span)

    def jump(self, bind: Bind) -> None:
        """A tail call of the function itself."""
        self.assign(self.next_params(bind))
        self.emit("continue;")

    def next_params(self, bind: Bind) -> list:
        op = bind.op
        scalars = [(p, a) for p, a in zip(self.f.params, op.args) if not isinstance(p.type, Arr) and a is not p]
        todo = []
        for p, a in zip(self.f.params, op.args):
            if isinstance(p.type, Arr) and a is not p and not self.plan.place[p].buffer.given:
                text, buffer = self.pointer_to(a), self.plan.place[p].buffer
                _, offset, root, reads = self.address(a)
                reads |= {root} if root in self.moving else frozenset()
                kind = f"{self.ctype(p.type.elem)} *"
                todo.append((self.param_name[p], buffer, Expr(text, PRIMARY, reads), kind, None))
        exprs = self.fit([a for _, a in scalars])
        for (p, a), expr in zip(scalars, exprs):
            name = self.param_name[p]
            value = self.as_type(a, p.type) if isinstance(a, Const) else expr
            todo.append((name, name, value, p.type, self.made.get(a)))
        return todo

    def fill_hole(self, bind: Bind, call: Bind) -> None:
        """A cell around a tail call: made now, with a hole that the next round fills."""
        op = bind.op
        assert isinstance(op, Make)
        data = self.unit.types[op.constructor.data]
        c = data.constructors[op.constructor.tag]
        (result,) = call.vars
        self.value[result] = Expr("NULL")
        values, _ = self.cell_values(op)
        name = self.names.fresh("cell")
        text = f"{self.unit.maker(data, c)}({', '.join(['arena', *values])})"
        self.emit(f"struct {data.cell} *const {name} = {text};")
        self.unless_failed()
        todo = self.next_params(call)
        field = next(f for f, a in zip(c.fields, op.args) if a is result)
        self.emit(f"*{self.hole} = {name};")
        self.emit(f"{self.hole} = &{data.member(c, name, field.name)};")
        self.assign(todo)
        self.emit("continue;")


class UnitPrinter(CPrinter):
    """Prints the file: its types and functions, then the model's own function."""

    def __init__(
        self,
        program: Program,
        *,
        dtype: str = "f64",
        name: str | None = None,
        line_directives: bool = False,
        math: str = "libm",
    ):
        own = Names(FUNCTION_RESERVED | ARENA_NAMES).fresh(name or program.name or "model")
        self.unit = Unit(program, dtype, own, line_directives, math)
        super().__init__(program, dtype=dtype, name=name, line_directives=line_directives, math=math)
        self.name = own
        self.names.taken |= self.unit.names.taken | ARENA_NAMES
        self.checks, self.support = self.unit.checks, self.unit.support

    def planned(self, program: Program) -> Plan:
        return plan(program, self.unit.pairs)

    def failed(self, number: int) -> str:
        return f"hyad_fail(arena, {number});" if self.arena else super().failed(number)

    # ------------------------------------------------------------------------------ parameters

    def param(self, p: Var) -> CParam:
        if not isinstance(p.type, Data):
            return super().param(p)
        name = self.names.fresh(p.name)
        self.value[p] = Expr(name)
        return CParam(name, self.unit.types[p.type].name)

    def kind(self, t: Any) -> str:
        if isinstance(t, Data):
            return self.unit.types[t].name
        return super().kind(t)

    # ---------------------------------------------------------------------------------- the whole

    def function(self) -> CFunction:
        unit, program = self.unit, self.program
        results = [type_of(r) for r in program.body.results]
        self.printers = [FunctionPrinter(f, unit) for f in unit.order]
        self.share(self.printers)
        unit.needs(self.printers)
        cells = any(self.celled(b.op) for b in all_binds(program.body))
        self.arena = cells or bool(self.plan.unsized) or any(info.arena for info in unit.functions.values())
        self.keeps = any(isinstance(t, Data) for t in results)
        self.run = unit.names.fresh(f"{self.name}_run")
        self.names.taken.add(self.run)
        for p in self.printers:
            p.define_params()
        self.functions_text = [line for p in self.printers for line in ["", *p.text()]]
        self.stack = sum(p.stack for p in self.printers)
        return super().function()

    def extras(self) -> dict[str, Any]:
        public = tuple(t for t in self.unit.types.values() if t.public)
        extras: dict[str, Any] = {"types": public, "arena": self.arena, "keeps": self.keeps and self.arena}
        plans = (self.plan, *(p.plan for p in self.printers))
        found = any(not b.grown for p in plans for b, _ in p.unsized) or any(p.plan.pools for p in self.printers)
        extras["unsized"] = found and self.arena
        return extras

    def top(self, frame: CFunction) -> None:
        """In a function of its own where the call may end from anywhere."""
        super().top(replace(frame, fallible=frame.fallible and not self.arena))
        self.lines = without_unused(self.lines)

    def prototype(self, fn: CFunction) -> str:
        if not self.arena:
            return fn.prototype
        return "static void " + fn.prototype.split(" ", 1)[1].replace(f"{fn.name}(", f"{self.run}(", 1)

    def preamble(self) -> list[str]:
        unit = self.unit
        text = [*unit.makers_text(), *unit.heads(self.printers), *self.functions_text]
        whole = "\n".join([*text, *(line.text for line in self.lines)])
        out = definitions([t for t in unit.types.values() if not t.public], self.dtype)
        if self.arena:
            self.allocates = bool(re.search(r"\bhyad_(alloc|room|copy|grow)\(", whole))
            out.append(ARENA_FAIL.strip("\n"))
            if self.allocates:
                out += ["", ARENA_BASE.strip("\n")]
            if re.search(r"\bhyad_(room|copy)\(", whole):
                out += ["", ARENA_ARRAY.strip("\n")]
            if "hyad_copy(" in whole:
                out += ["", ARENA_COPY.strip("\n")]
            if "hyad_grow(" in whole:
                out += ["", ARENA_GROW.strip("\n")]
        return [*out, *unit.empties.values(), *text]

    def includes(self, text: str) -> list[str]:
        found = [f'#include "{self.name}.h"', *super().includes(text)]
        if re.search(r"\b(NULL|offsetof)\b", text):
            found.append("#include <stddef.h>")
        if self.arena:
            found.append("#include <setjmp.h>")
        return found

    def entry(self, fn: CFunction) -> list[str]:
        """The model's own function: where a call begins, and ends."""
        if not self.arena:
            return []
        given = [p.name for p in fn.params] + [*fn.dims] + [r.name for r in fn.results]
        given += ["work"] if fn.workspace is not None else []
        call = f"{self.run}({', '.join([*given, 'arena'])});"
        own = Names(given)
        failed, mark = own.fresh("failed"), own.fresh("mark")
        lines = [f"jmp_buf {failed};"]
        if self.allocates:
            lines.append(f"const hyad_mark {mark} = {{arena->blocks, arena->next, arena->end}};")
        lines += [
            f"arena->failed = &{failed};",
            "arena->status = 0;",
            f"arena->floor = (size_t)&{failed} - (arena->stack ? arena->stack : HYAD_STACK);",
            f"if (setjmp({failed}) == 0)",
            *("    " + t for t in wrapped(call, WIDTH - 8)),
        ]
        if self.allocates:
            lines.append(f"{'if (arena->status) ' if fn.keeps else ''}hyad_release(arena, {mark});")
        lines.append("return arena->status;")
        return [*wrapped(fn.prototype, WIDTH), "{", *("    " + t for t in lines), "}"]

    def declarations(self, fn: CFunction) -> list[str]:
        lines = ARENA_HEADER.split("\n") if fn.arena else []
        public = [t for t in self.unit.types.values() if t.public]
        if public:
            lines += [*definitions(public, self.dtype, guarded=True), ""]
        return lines

    def described(self, p: CParam) -> str:
        if p.elem in ("real", "int", "bool"):
            return super().described(p)
        return f"a {p.elem}"

    def share(self, printers: list[FunctionPrinter]) -> None:
        """Find the array parameters whose memory no caller changes during the call: cells may point to it."""
        stable = {self.plan.place[p].buffer for p in self.program.params if isinstance(p.type, Arr)}
        of = {}
        for pr in printers:
            for j, p in enumerate(pr.f.params):
                if isinstance(p.type, Arr) and j not in self.unit.pairs[pr.f].values():
                    of[pr.f, j] = pr.plan.place[p].buffer
        stable |= set(of.values())
        changed = True
        while changed:
            changed = False
            for pr in (self, *printers):
                for bind in all_binds(pr.program.body):
                    if not isinstance(bind.op, Apply):
                        continue
                    for j, a in enumerate(bind.op.args):
                        buffer = of.get((bind.op.function, j))
                        if buffer not in stable:
                            continue
                        root = pr.plan.root(a)
                        if root.kind not in ("cell", "table") and root not in stable:
                            stable.discard(buffer)
                            changed = True
        self.unit.stable = stable
