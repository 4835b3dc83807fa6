"""Data in C: a type of cells for each data type, and the statements that make, take apart and hand on such values.

A value of a data type ``Tree`` is a ``Tree``: a pointer to a cell that never changes, a ``const struct Tree_cell *``.
A cell is a tag and a union of its constructors' fields; where one constructor alone needs cells it is those fields and
no more. The first constructor without fields is NULL, so a list is what a person would write: a pointer to ``struct
{double car; List cdr;}``, NULL at its end. Fields are unboxed; an array is a pointer beside its sizes.

``DataPrinter`` prints the operations on them, ``while`` and calls; what the functions of a file share, and the entry
around them, is in ``functions.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hyad.core import (
    BOOL,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Case,
    Const,
    Constructor,
    Data,
    Loop,
    Make,
    Prim,
    Program,
    Type,
    Var,
    While,
    all_binds,
    binders_of,
    functions_of,
    type_atoms,
)

from .cfunction import CConstructor, CData, CField
from .comments import commented
from .expressions import AND, EQUAL, OR, PRIMARY, UNARY, Expr, as_reals, negated
from .identifiers import WORD, Names
from .lower import Buffer, measured, type_of
from .operands import Line
from .statements import BodyPrinter

STRUCTURED = (While, Case, Make, Apply)
#: What the functions of ``stub.py`` call their variables, among which types are named.
STUB_VARIABLES = frozenset(
    "apart args at check collects code fail failed flags got held helper index ints item items keys kind left len list"
    " make misfit names ndim need next number old one out part pool rank readonly result room same self shape size"
    " state status total tuple type value view waiting want wanted whole why".split()
)


def item_type(a: Atom) -> Type:
    """The type of an atom, or of an array's elements."""
    t = type_of(a)
    return t.elem if isinstance(t, Arr) else t


def structured(program: Program) -> bool:
    """Whether a program has data, functions or a ``while``."""
    if any(isinstance(t, Data) for p in program.params for t in (p.type, getattr(p.type, "elem", None))):
        return True
    return any(isinstance(bind.op, STRUCTURED) for bind in all_binds(program.body))


def reachable(types: Iterable[Type | None]) -> dict[Data, None]:
    """The data types that values of some types hold, those in their fields included."""
    found: dict[Data, None] = {}
    todo = list(types)[::-1]
    while todo:
        t = todo.pop()
        if isinstance(t, Arr):
            t = t.elem
        if isinstance(t, Data) and t not in found:
            found[t] = None
            todo += [f.type for c in reversed(t.constructors) for f in reversed(c.fields)]
    return found


def types_in(program: Program) -> dict[Data, None]:
    """The data types of a program and of its functions."""
    seen: list[Type | None] = [p.type for p in program.params]
    functions = functions_of(program.body)
    for f in functions:
        seen += [v.type for v in (*f.params, *f.results)]
    for block in (program.body, *(f.body for f in functions)):
        for bind in all_binds(block):
            seen += [v.type for v in (*bind.vars, *binders_of(bind.op))]
            if isinstance(bind.op, Case):
                seen.append(type_of(bind.op.value))
    return reachable(seen)


def handed_down(program: Program) -> set[Data]:
    """The types of continuations whose values are only made, matched and handed to what is called. Such a value is
    read no later than its maker returns, so that its cell can be on the stack."""
    functions = functions_of(program.body)
    found = {t for t in types_in(program) if any(c.make == "continuation" for c in t.constructors)}

    def leaves(t: Any) -> None:
        found.discard(t.elem if isinstance(t, Arr) else t)

    for v in (*program.params, *program.body.results, *(r for f in functions for r in f.results)):
        leaves(type_of(v))
    for block in (program.body, *(f.body for f in functions)):
        for bind in all_binds(block):
            for v in (*(() if isinstance(bind.op, Make) else bind.vars), *binders_of(bind.op)):
                if isinstance(v.type, Arr) or not isinstance(bind.op, Case) or v in bind.vars:
                    leaves(v.type)
    held = [(t, f.type) for t in types_in(program) for c in t.constructors for f in c.fields]
    count = -1
    while count != len(found):  # what is in a cell lives as long as that
        count = len(found)
        for owner, t in held:
            if owner not in found or isinstance(t, Arr):
                leaves(t)
    return found


def ctypes(
    program: Program, names: Names, reserved: Iterable[str], public: Iterable[Data], apart: bool = False
) -> dict[Data, CData]:
    """The C type of each data type of a program; the ``public`` ones are those of the header. Fields have no name
    that is ``reserved``, nor, where ``apart``, that of a type: C++ has one space of names for both."""
    out: dict[Data, CData] = {}
    outside = set(public)
    types = list(types_in(program))
    called = {data: names.fresh(data.name + "_type" * (data in outside and hidden(data.name))) for data in types}
    elements = {"Real": "real", "Int": "int", "Bool": "bool", "Unit": "unit"}
    for data in types:
        reserved = {*reserved, *called.values()} if apart else reserved
        labels = Names(reserved)
        made: list[CConstructor] = []
        empty = next((c for c in data.constructors if not c.fields), None)
        for c in data.constructors:
            fields: list[CField] = []
            own = Names(reserved)
            text: dict[Var, str] = {f: own.fresh(f.name) for f in c.fields}
            sizes = {d for f in c.fields for d in type_atoms(f.type)}
            for f in c.fields:
                elem = f.type.elem if isinstance(f.type, Arr) else f.type
                kind = called[elem] if isinstance(elem, Data) else elements[elem.name]
                dims = tuple(int(d.value) if isinstance(d, Const) else text[d] for d in type_atoms(f.type))
                fields.append(CField(text[f], kind, dims, f in sizes))
            label = labels.fresh(c.name)
            kind, maker = kind_of(c)
            names.taken.add(f"{called[data]}_{label}")
            made.append(CConstructor(label, tuple(fields), c is empty, kind, maker, c.parts))
        out[data] = CData(called[data], tuple(made), data in outside)
    return out


def hidden(name: str) -> bool:
    """Whether a variable beside the function, where Python's values are taken apart, has the name of a type."""
    return bool(re.fullmatch(r"[a-z]\d*", name)) or name in STUB_VARIABLES


def kind_of(c: Constructor) -> tuple[str, Any]:
    """What a constructor is in Python."""
    if c.make is None:
        return "none", None
    if c.make in (tuple, float, bool, "array", "whole"):
        return {tuple: "tuple", float: "number", bool: "truth"}.get(c.make, c.make), None
    return ("inner", None) if isinstance(c.make, str) else ("class", c.make)


def element(kind: str, dtype: str) -> str:
    """The C type of a field that is no array."""
    real = "double" if dtype == "f64" else "float"
    return {"real": real, "int": "long long", "bool": "int", "unit": "int"}.get(kind, kind)


def pointer_type(field: CField, dtype: str) -> str:
    return f"const {element(field.elem, dtype)} *"


def declared(field: CField, dtype: str) -> str:
    if field.dims:
        return f"{pointer_type(field, dtype)}{field.name}"
    return f"{element(field.elem, dtype)} {field.name}"


def described(data: CData, c: CConstructor) -> str:
    """A constructor as a form, with what its fields are."""
    shapes = "".join(f" {f.name}[{']['.join(map(str, f.dims))}]" if f.dims else f" {f.name}" for f in c.fields)
    return f"({c.name}{shapes})" if c.fields else f"{c.name}: {data.empty(c)}"


def definition(data: CData, dtype: str) -> list[str]:
    """The tags and the struct of a data type. (Its name is declared before: types may hold each other.)"""
    forms = commented(" or ".join(described(data, c) for c in data.constructors), 300)
    lines = [f"/* {data.name}: {forms} */"]
    if data.tagged:
        lines.append(f"enum {{ {', '.join(data.tag(c) for c in data.constructors)} }};")
    celled = [c for c in data.constructors if c.fields]
    if not data.tagged:
        fields = [f"    {declared(f, dtype)};" for c in celled for f in c.fields]
        return [*lines, f"struct {data.cell} {{", *(fields or ["    char none;"]), "};"]
    lines += [f"struct {data.cell} {{", "    int tag;"]
    if celled:
        lines.append("    union {")
        for c in celled:
            lines.append(f"        struct {{ {' '.join(declared(f, dtype) + ';' for f in c.fields)} }} {c.name};")
        lines.append("    } as;")
    return [*lines, "};"]


#: What a compiler says of two headers that have types of one name.
OTHERS = "another header has a type of this name with other fields: emit both for data of equal types (1.0, not 1)"


def definitions(types: Iterable[CData], dtype: str, guarded: bool = False) -> list[str]:
    """The definitions of data types; ``guarded`` ones may stand in several headers, if they are the same."""
    types = list(types)
    texts = {t.name: definition(t, dtype) for t in types}
    lines: list[str] = []
    if not guarded:
        lines += [f"typedef const struct {t.cell} *{t.name};" for t in types]
        for t in types:
            lines += texts[t.name]
        return lines
    whole = hashlib.sha256("\n".join(line for t in types for line in texts[t.name]).encode()).hexdigest()[:8]
    guard = f"HYAD_{'_'.join(t.name for t in types)[:60].upper()}_{whole.upper()}"
    lines += [f"#ifndef {guard} /* several headers may have these types */", f"#define {guard}"]
    known = [f"HYAD_DATA_{t.name}" for t in types]
    lines += ["#if " + " || ".join(f"defined({name})" for name in known), f'#error "{OTHERS}"', "#endif"]
    lines += [f"#define {name}" for name in known]
    lines += [f"typedef const struct {t.cell} *{t.name};" for t in types]
    for t in types:
        lines += texts[t.name]
    return [*lines, "#endif"]


_SET = re.compile(r"(?:(?:const )?(?:double|float|long long|int) )?(\w+)(?: [-+*/]?= ([^;=]*)|\+\+);")


def without_unused(lines: list[Line], read: Iterable[str] = ()) -> list[Line]:
    """Lines without the variables that are set and never read: sizes that go round in a loop beside their arrays.
    ``read`` are read elsewhere."""
    while True:
        count: Counter[str] = Counter(read)
        places: dict[str, list[int]] = {}
        for k, line in enumerate(lines):
            count.update(WORD.findall(line.text))
            match = _SET.fullmatch(line.text)
            if match is not None and not re.search(r"\w\(", match[2] or ""):
                places.setdefault(match[1], []).append(k)
        drop = {k for name, at in places.items() if len(at) == count[name] for k in at}
        if not drop:
            return lines
        lines = [line for k, line in enumerate(lines) if k not in drop]


class DataPrinter(BodyPrinter):
    """The statements of data, of ``while`` and of calls. ``unit`` is what the functions of the file share."""

    unit: Any = None

    # ------------------------------------------------------------------ what a target overrides

    def cast(self, elem: str) -> str:
        """What makes memory of the arena a pointer to elements: nothing in C."""
        return ""

    def failing(self) -> list[str]:
        """The statement behind what may have failed, where that comes back: in C it does not."""
        return []

    def mark(self, name: str) -> str:
        """The statement that remembers how much memory is taken."""
        return f"const hyad_mark {name} = {{arena->blocks, arena->next, arena->end}};"

    def release(self, name: str) -> str:
        """The statement that gives back what was taken since."""
        return f"hyad_release(arena, {name});"

    def cell_on_the_stack(self, data: CData, c: CConstructor, name: str, values: Sequence[str]) -> None:
        """A cell that nobody reads when this function is done."""
        fields = ", ".join(values)
        value = f"{{.tag = {data.tag(c)}, .as.{c.name} = {{{fields}}}}}" if data.tagged else f"{{{fields}}}"
        self.emit(f"const struct {data.cell} {name} = {value};")

    # ---------------------------------------------------------------------------- types and values

    def ctype(self, elem: Any) -> str:
        if isinstance(elem, Data):
            return self.unit.types[elem].name
        if isinstance(elem, str):  # of a pointer
            return elem
        return super().ctype(elem)

    def literal(self, value: Any, t: Any) -> Expr:
        return Expr("NULL") if isinstance(t, Data) else super().literal(value, t)

    def structured(self, bind: Bind, op: Any) -> None:
        if isinstance(op, While):
            self.while_(bind, op)
        elif isinstance(op, Case):
            self.case(bind, op)
        elif isinstance(op, Make):
            self.make(bind, op)
        else:
            self.apply(bind, op)

    def declare(self, buffer: Buffer, bind: Bind) -> None:
        if buffer.grown:
            return
        if not buffer.arena or buffer in self.buffer_name:
            super().declare(buffer, bind)
            return
        name = self.buffer_name[buffer] = self.names.fresh(buffer.var.name if buffer.var else "t")
        elem = self.ctype(buffer.elem)
        for d in buffer.dims:
            self.fixed(d)
        self.emit(f"{elem} *{name} = {self.cast(elem)}{self.room(buffer.dims, elem)};")
        self.unless_failed()
        if buffer.partial or buffer.blank:
            self.clear_block(name, buffer.dims, buffer.elem)

    def room(self, dims: Any, elem: str) -> str:
        """An expression for fresh memory of the arena; a size that overflows is known as a real number."""
        return f"hyad_room(arena, {as_reals(self.length(dims).text)}, sizeof({elem}))"

    # --------------------------------------------------------------------------------------- data

    def make(self, bind: Bind, op: Make) -> None:
        (var,) = bind.vars
        data = self.unit.types[op.constructor.data]
        c = data.constructors[op.constructor.tag]
        if not c.fields:
            self.value[var] = Expr(data.empty(c))
            self.unit.use_empty(data, c)
            return
        values, reads = self.cell_values(op)
        if op.constructor.data in self.unit.handed_down:
            name = self.names.fresh(var.name)
            self.cell_on_the_stack(data, c, name, values)
            self.value[var] = Expr(f"&{name}", UNARY)
            return
        text = f"{self.unit.maker(data, c)}({', '.join(['arena', *values])})"
        self.settle(var, Expr(text, PRIMARY, reads))

    def celled(self, op: Any) -> bool:
        """Whether an operation makes a cell in the arena."""
        return isinstance(op, Make) and bool(op.args) and op.constructor.data not in self.unit.handed_down

    def cell_values(self, op: Make) -> tuple[list[str], frozenset]:
        """The values of a new cell's fields. An array is copied unless its memory stays as it is."""
        data = self.unit.types[op.constructor.data]
        texts: dict[int, str] = {}
        reads: frozenset = frozenset()
        arrays = [k for k, a in enumerate(op.args) if isinstance(type_of(a), Arr)]
        for k in arrays:
            texts[k] = self.lasting(op.args[k])
        scalars = [k for k in range(len(op.args)) if k not in arrays]
        for k, expr in zip(scalars, self.fit([op.args[k] for k in scalars])):
            field = op.constructor.fields[k]
            a = op.args[k]
            expr = self.real_literal(a.value) if isinstance(a, Const) and field.type == REAL else expr
            texts[k], reads = expr.text, reads | expr.reads
        assert len(texts) == len(data.constructors[op.constructor.tag].fields)
        return [texts[k] for k in range(len(op.args))], reads

    def lasting(self, array: Any, last: bool = False) -> str:
        """A pointer to an array that no one will change: its own memory if that stays as it is (``last``: nothing is
        done after this), else a copy in the arena."""
        root, subs, _ = self.plan.resolve(self.plan.of(array))
        kept = root.kind == "own" and (root.arena or root.grown) and (last or not (subs or root.reused))
        if root.kind in ("cell", "table") or root in self.unit.stable or kept:
            return self.pointer_to(array)
        t = type_of(array)
        for d in t.dims:
            self.fixed(d)
        elem = self.ctype(t.elem)
        size = as_reals(self.length(t.dims).text)
        name = self.names.fresh(array.name if isinstance(array, Var) else "t")
        copied = f"hyad_copy(arena, {self.pointer_to(array)}, {size}, sizeof({elem}))"
        self.emit(f"const {elem} *{name} = {self.cast(f'const {elem}')}{copied};")
        self.unless_failed()
        return name

    def case(self, bind: Bind, op: Case) -> None:
        base = self.scrutinee(op)
        if len(op.arms) == 1:
            (arm,) = op.arms
            self.fields(op, 0, base)
            self.statements(arm.block, {})
            self.span = bind.span
            for k, var in enumerate(bind.vars):
                if not isinstance(var.type, Arr):
                    self.settle(var, self.as_type(arm.block.results[k], var.type))
            self.move(arm.block)
            return
        if len(bind.vars) == 1 and bind.vars[0].type == BOOL and bind.vars[0] not in self.destination:
            known = [arm.block.results[0] for arm in op.arms]
            if all(isinstance(r, Const) for r in known) and not any(arm.block.binds for arm in op.arms):
                self.settle(bind.vars[0], self.test(op, base, [bool(r.value) for r in known]))
                return
        span = bind.span
        self.flush_all()
        slots = self.slots_for(bind, op)
        self.declare_slots(slots)
        arms = []
        for k, arm in enumerate(op.arms):
            arms.append(self.branch(arm.block, bind, slots, lambda k=k: self.fields(op, k, base)))
        self.span = span
        self.chain(op, base, arms)
        self.bind_slots(bind, slots)

    def test(self, op: Case, base: Expr, holds: list[bool]) -> Expr:
        """Whether a value was made by one of the constructors that ``holds`` marks."""
        data = self.unit.types[op.arms[0].constructor.data]
        value = base.at(PRIMARY)
        if sum(holds) == 1 and data.constructors[holds.index(True)].null:
            return Expr(f"{value} == NULL", EQUAL, base.reads)
        null = [h for c, h in zip(data.constructors, holds) if c.null]
        if null and sum(holds) == len(holds) - 1 and not null[0]:
            return Expr(f"{value} != NULL", EQUAL, base.reads)
        wanted = [c for c, h in zip(data.constructors, holds) if h]
        some = [data.test(c, value) for c in sorted(wanted, key=lambda c: not c.null)]
        guard = f"{value} != NULL && " if null and not null[0] and data.tagged else ""
        if not some or len(some) == len(holds):
            return Expr(str(int(bool(some))))
        if guard:
            return Expr(f"{guard}({' || '.join(some)})" if len(some) > 1 else guard + some[0], AND, base.reads)
        return Expr(" || ".join(some), OR if len(some) > 1 else EQUAL, base.reads)

    def scrutinee(self, op: Case) -> Expr:
        """The value that a ``case`` takes apart, to be written many times."""
        value = op.value
        if value in self.pending:
            self.materialise(value)
        return self.operand(value)

    def fields(self, op: Case, number: int, base: Expr) -> None:
        """In an arm: where its fields are. Cells do not change, so a field is read where it is used."""
        arm = op.arms[number]
        data = self.unit.types[arm.constructor.data]
        c = data.constructors[number]
        named = base.reads or len(op.arms) == 1 and not arm.block.binds  # taken out for what comes behind the match
        for field, var in zip(c.fields, arm.fields):
            text = data.member(c, base.at(PRIMARY), field.name)
            if isinstance(var.type, Arr):
                buffer = self.plan.place[var].buffer
                self.buffer_name[buffer] = text
                if named and self.uses.get(var):
                    name = self.buffer_name[buffer] = self.names.fresh(var.name)
                    self.emit(f"const {self.ctype(var.type.elem)} *{name} = {text};")
            elif named and self.uses.get(var):
                self.define(var, Expr(text))
                self.lines[-1] = replace(self.lines[-1], view=var)  # a size may be written nowhere
            else:
                self.value[var] = Expr(text)

    def chain(self, op: Case, base: Expr, arms: list[list[Line]]) -> None:
        """``if .. else if .. else`` over the constructors, without the arms in which nothing is done."""
        data = self.unit.types[op.arms[0].constructor.data]
        tests = [data.test(c, base.at(PRIMARY)) for c in data.constructors]
        arms = [[line for line in lines if line.view is None or line.view in self.followed] for lines in arms]
        order = sorted(range(len(arms)), key=lambda k: not data.constructors[k].null)  # NULL has no tag to look at
        todo = [(tests[k], arms[k]) for k in order if arms[k]]
        whole = len(todo) == len(arms)
        for k, (test, lines) in enumerate(todo):
            last = whole and k == len(todo) - 1
            head = "else {" if last else f"if ({test}) {{"
            self.emit(("} else " if k and not last else "} " if k else "") + head)
            self.lines += lines
        if todo:
            self.emit("}")

    # -------------------------------------------------------------------------------------- while

    def while_(self, bind: Bind, op: While) -> None:
        n, span = len(op.accs), bind.span
        count = bind.vars[n]
        outs = [*bind.vars[:n], *bind.vars[n + 1 :]]
        grown = {v: self.plan.place[v].buffer for v in outs[n:]}
        inits, before = self.start(bind, op)
        for v, buffer in grown.items():
            for d in buffer.dims[1:]:
                self.fixed(d)
            self.buffer_name[buffer] = self.names.fresh(v.name)
            self.beside(f"{self.ctype(buffer.elem)} *{self.buffer_name[buffer]} = NULL;")
        index, counted = "", bool(grown) or self.uses.get(count, 0) > 0
        if counted:
            index = self.names.fresh(count.name)
            self.beside(f"long long {index} = 0;")
            self.value[count] = Expr(index, PRIMARY, frozenset({index}))
            self.slot[count] = index
            self.indices.add(count)
        if grown:
            capacity = self.names.fresh("room")
            self.beside(f"long long {capacity} = 0;")
        old = self.captured()
        self.enter()
        self.statements(op.cond, {})
        self.span = span
        test = self.as_type(op.cond.results[0], type_of(op.cond.results[0]))
        first, self.lines = self.lines, []
        if grown:
            self.beside(f"if ({index} == {capacity}) {{")
            self.beside(f"    {capacity} = {capacity} ? 2*{capacity} : 32;")
            for buffer in grown.values():
                name, size = self.buffer_name[buffer], self.bytes(buffer.dims[1:], buffer.elem)
                grow = f"hyad_grow(arena, {name}, {index}, {capacity}, {size})"
                self.beside(f"    {name} = {self.cast(self.ctype(buffer.elem))}{grow};")
            for text in self.failing():
                self.beside(f"    {text}")
            self.beside("}")
        self.iteration(bind, op, inits, outs, index)
        if counted:
            self.changes(index)
            self.beside(f"{index}++;")
        self.leave()
        body, self.lines = self.lines, old
        if first:
            self.emit("for (;;) {", span)
            self.lines += [*first, Line(self.depth + 1, f"if ({negated(test).text}) break;", span)]
        else:
            self.emit(f"while ({test.text}) {{", span)
        self.lines += body
        self.emit("}")
        self.after(bind, before)

    def beside(self, text: str) -> None:
        """A line that keeps books: it came from no form."""
        self.lines.append(Line(self.depth, text))

    def unless_failed(self) -> None:
        """Behind what may have failed."""
        for text in self.failing():
            self.beside(text)

    def iteration(self, bind: Bind, op: Loop | While, inits: dict[int, Expr], outs: Sequence[Var], index: str) -> None:
        """A round of a loop gives back the memory that it took, unless that holds what the round gives."""
        if not self.wasteful(op):
            super().iteration(bind, op, inits, outs, index)
            return
        mark = self.names.fresh("mark")
        self.beside(self.mark(mark))
        super().iteration(bind, op, inits, outs, index)
        self.beside(self.release(mark))

    def wasteful(self, op: Loop | While) -> bool:
        """Whether a round of a loop takes memory of the arena that nobody needs after it."""
        if self.unit is None or any(isinstance(item_type(r), Data) for r in (*op.accs, *op.body.results)):
            return False
        takes = False
        for bind in all_binds(op.body):
            inner = bind.op
            if isinstance(inner, Prim) and inner.name == "update" and isinstance(item_type(bind.vars[0]), Data):
                return False
            takes |= any(buffer.arena for buffer in self.plan.declare.get(bind, ()))
            takes |= self.celled(inner)
            takes |= isinstance(inner, While) and len(bind.vars) > len(inner.accs) + 1
            takes |= isinstance(inner, Apply) and self.unit.functions[inner.function].leaves
        return takes

    # -------------------------------------------------------------------------------------- calls

    def apply(self, bind: Bind, op: Apply) -> None:
        text, reads, written = self.called(bind, op)
        f = op.function
        struct = self.unit.functions[f].struct
        inside = [k for k in range(len(f.results)) if self.unit.returned(f, k)]
        if not any(self.uses.get(bind.vars[k]) for k in inside):
            self.emit(f"{text};")
            return
        if struct is None:
            var = bind.vars[inside[0]]
            if isinstance(var.type, Arr):
                name = self.buffer_name[self.plan.place[var].buffer] = self.names.fresh(var.name)
                self.emit(f"const {self.ctype(var.type.elem)} *{name} = {text};")
            elif written:
                self.made[var] = self.span
                self.define(var, Expr(text))
            else:
                self.settle(var, Expr(text, PRIMARY, reads))
            return
        name = self.names.fresh(f.name)
        self.emit(f"const struct {struct} {name} = {text};")
        for k in inside:
            field = f"{name}.{self.unit.functions[f].labels[k]}"
            if isinstance(bind.vars[k].type, Arr):
                self.buffer_name[self.plan.place[bind.vars[k]].buffer] = field
            else:
                self.value[bind.vars[k]] = Expr(field)

    def called(self, bind: Bind, op: Apply) -> tuple[str, frozenset, bool]:
        """The text of a call, what it reads, and whether it writes to arrays."""
        f, pairs = op.function, self.unit.pairs.get(op.function, {})
        for k in sorted(self.plan.copies[bind]):
            self.copy(op.args[pairs[k]], bind.vars[k])
        taken = {j: k for k, j in pairs.items()}
        arrays: dict[int, str] = {}
        reads: frozenset = frozenset()
        for j, a in enumerate(op.args):
            if isinstance(type_of(a), Arr):
                source = bind.vars[taken[j]] if j in taken else a
                _, offset, buffer, more = self.address(source)
                for d in offset.reads if offset else ():
                    reads |= {d}
                arrays[j] = self.pointer_to(source)
                reads |= more | ({buffer} if buffer.kind in ("own", "result") or buffer in self.moving else frozenset())
        scalars = [j for j in range(len(op.args)) if j not in arrays]
        texts = dict(arrays)
        for j, expr in zip(scalars, self.fit([op.args[j] for j in scalars])):
            a = op.args[j]
            expr = self.real_literal(a.value) if isinstance(a, Const) and f.params[j].type == REAL else expr
            texts[j], reads = expr.text, reads | expr.reads
        parts = ["arena"] if self.unit.functions[f].arena else []
        parts += [texts[j] for j in range(len(op.args))]
        written = False
        for k, var in enumerate(bind.vars):
            if isinstance(var.type, Arr) and measured(f, k):
                written = True
                self.changes(self.plan.root(var))
                if k not in pairs:
                    parts.append(self.pointer_to(var))
        return f"{self.unit.functions[f].name}({', '.join(parts)})", reads, written
