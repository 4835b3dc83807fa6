"""Typed core to plain Python: a ``def`` with loops over NumPy arrays.

``print_python`` gives a text that runs by itself; ``load_python`` a callable of flat arguments. This target serves
where there is no C compiler, evaluates every stage, and says what was wrong after a check in C has failed. It is made
to be right rather than fast, but accumulators are updated in place where ``lower.plan`` found that nothing else sees
them: otherwise a gradient would be quadratic.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Callable, Iterable, Sequence
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
    Prim,
    Program,
    Type,
    Var,
    all_binds,
)
from hyad.errors import CompileError
from hyad.primitives import PRIMITIVES
from hyad.reader import deep

from .lower import Names, plan, type_of

DTYPES = {"Real": "float", "Int": "np.int64", "Bool": "bool"}
OPERATORS = {"+": "+", "-": "-", "*": "*", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "=": "==", "!=": "!="}
OPERATORS |= {"and": "and", "or": "or"}
FUNCTIONS = {"/": "divide", "//": "floor_divide", "%": "modulo", "**": "power"}
RESERVED = frozenset((*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "np", "spans", "PRIMITIVES"))
RESERVED |= {"BoundsError", "ModelTypeError"}
RELATIONS = {"==": "{a} == {b}", "<": "{a} < {b}", "<=": "{a} <= {b}", "in": "0 <= {a} < {b}"}


def print_python(program: Program) -> str:
    """A typed program as the text of a Python module with one function.

    It takes the flat parameters and returns the tuple of flat results; named dims are read from the arrays' shapes.
    """
    return deep(lambda: _Printer(program).module())


def load_python(program: Program) -> Callable[..., tuple]:
    """A typed program as a callable: flat arguments to the tuple of flat results.

    Reals are floats, ``Int`` ints, ``Bool`` bools, arrays NumPy arrays; arguments are converted, never written to. A
    failed check raises BoundsError or ModelTypeError with the form's span; CompileError where Python's own limits on
    nesting are reached.
    """
    printer = deep(lambda: _Printer(program))
    text = deep(printer.module)
    names: dict[str, Any] = {}
    try:
        exec(compile(text, f"<hyad {program.name}>", "exec"), names)
    except (SyntaxError, RecursionError, MemoryError) as error:  # 100 indentations and 20 loops are Python's limits
        raise CompileError(
            f"{program.name} is nested too deeply for the Python target: {error}",
            program.span,
            "name inner parts as models of their own, or install a C compiler",
        ) from None
    names["spans"] = printer.spans
    function = names[printer.name]
    into = [_conversion(p.type) for p in program.params]
    back = [_conversion(type_of(r)) for r in program.body.results]

    def call(*args: Any) -> tuple:
        with np.errstate(all="ignore"):
            out = function(*(convert(a) for convert, a in zip(into, args, strict=True)))
        return tuple(convert(r) for convert, r in zip(back, out))

    call.__name__, call.__doc__ = printer.name, text
    return call


def _conversion(t: Type) -> Callable[[Any], Any]:
    if isinstance(t, Arr):
        dtype = {"Real": np.float64, "Int": np.int64, "Bool": np.bool_}[t.elem.name]
        return lambda a: np.ascontiguousarray(a, dtype)
    return {"Real": float, "Int": int, "Bool": bool}.get(t.name, lambda value: value)


class _Printer:
    """One pass over the pruned program; each binding is a line."""

    def __init__(self, program: Program):
        self.plan = plan(program)
        self.program = self.plan.program
        self.names = Names(RESERVED)
        self.name = self.names.fresh(program.name or "model")
        self.value: dict[Var, str] = {}
        self.functions: dict[str, str] = {}  # primitive -> its name in the text
        self.tables: dict[int, tuple[str, Any]] = {}
        self.spans: list[Any] = []
        self.errors: set[str] = set()
        self.lines: list[str] = []
        self.depth = 1

    def module(self) -> str:
        program = self.program
        for name in sorted({b.op.name for b in all_binds(program.body) if isinstance(b.op, Prim)} & PRIMITIVES.keys()):
            if name not in OPERATORS and name not in ("neg", "not"):
                self.functions[name] = self.names.fresh(FUNCTIONS.get(name, name))
        params = [self.bind(p) for p in program.params]
        for p in program.params:
            for axis, d in enumerate(p.type.dims if isinstance(p.type, Arr) else ()):
                if isinstance(d, Var) and d not in self.value:
                    self.emit(f"{self.bind(d)} = {self.value[p]}.shape[{axis}]")
        self.block(program.body)
        moved = self.plan.moved[program.body]
        results = [self.result(r, k in moved) for k, r in enumerate(program.body.results)]
        self.emit(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        head = ["import numpy as np", ""]
        if self.errors:
            head.insert(1, f"from hyad.errors import {', '.join(sorted(self.errors))}")
        if self.functions:
            head.insert(len(head) - 1, "from hyad.primitives import PRIMITIVES")
            head += [f"{text} = PRIMITIVES[{name!r}]" for name, text in self.functions.items()]
        if self.spans:
            head.append(f"spans = [None] * {len(self.spans)}")
        for name, t, value in self.tables.values():
            items = re.sub(r"\b(nan|inf)\b", r"np.\1", repr(np.asarray(value).tolist()))
            head.append(f"{name} = np.array({items}, {DTYPES[t.elem.name]})")
        doc = (program.doc or "").strip().split("\n")[0]
        body = [f"def {self.name}({', '.join(params)}):", *([f"    {doc!r}"] if doc else []), *self.lines]
        return "\n".join([*head, *([""] if head[-1] else []), "", *body, ""])

    # ----------------------------------------------------------------------------------- atoms

    def bind(self, var: Var) -> str:
        self.value[var] = self.names.fresh(var.name)
        return self.value[var]

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def literal(self, value: Any, t: Type) -> str:
        if t == REAL:
            value = float(value)
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        if value is None:
            return "None"
        return repr(bool(value)) if t == BOOL else repr(int(value))

    def atom(self, a: Atom, wanted: Type | None = None) -> str:
        t = type_of(a)
        if isinstance(a, Const):
            if isinstance(t, Arr):
                name = self.tables.get(id(a.value), (None,))[0]
                if name is None:
                    name = self.names.fresh("table")
                    self.tables[id(a.value)] = (name, t, a.value)
                return name
            return self.literal(a.value, wanted if wanted == REAL else t)
        return f"float({self.value[a]})" if wanted == REAL and t == INT else self.value[a]

    def result(self, a: Atom, copied: bool, t: Type | None = None) -> str:
        return f"{self.atom(a)}.copy()" if copied else self.atom(a, t)

    def shape(self, dims: Sequence[Atom]) -> str:
        return f"({', '.join(map(self.atom, dims))}{',' if len(dims) == 1 else ''})"

    def empty(self, t: Arr, how: str = "empty") -> str:
        dtype = DTYPES[t.elem.name]
        return f"np.{how}({self.shape(t.dims)}{'' if dtype == 'float' else f', {dtype}'})"

    # ------------------------------------------------------------------------------- statements

    def block(self, block: Block) -> None:
        for bind in block.binds:
            op = bind.op
            if isinstance(op, Prim):
                self.prim(bind, op)
            elif isinstance(op, If):
                self.conditional(bind, op)
            elif isinstance(op, Loop):
                self.loop(bind, op)
            elif isinstance(op, Check):
                self.check(bind, op)

    def check(self, bind: Bind, op: Check) -> None:
        error = "BoundsError" if op.kind == "bounds" else "ModelTypeError"
        self.errors.add(error)
        holds = RELATIONS[op.relation].format(a=self.atom(op.a), b=self.atom(op.b))
        self.emit(f"if not ({holds}):")
        self.emit(f"    raise {error}({op.message!r}, spans[{len(self.spans)}])")
        self.spans.append(bind.span)

    def prim(self, bind: Bind, op: Prim) -> None:
        var, args = bind.vars[0], op.args
        if op.name in ("update", "add-at"):
            array, subs, x = self.atom(args[0]), ", ".join(map(self.atom, args[1:-1])), self.atom(args[-1])
            if bind in self.plan.in_place:
                self.value[var] = array
            else:
                self.emit(f"{self.bind(var)} = {array}.copy()")
            self.emit(f"{self.value[var]}[{subs}] {'+=' if op.name == 'add-at' else '='} {x}")
            return
        text = self.expression(op, var)
        self.emit(f"{self.bind(var)} = {text}")

    def expression(self, op: Prim, var: Var) -> str:
        name, args = op.name, op.args
        if name == "get":
            subs = ", ".join(map(self.atom, args[1:]))
            return (
                f"{self.atom(args[0])}[{subs}]" if isinstance(var.type, Arr) else f"{self.atom(args[0])}.item({subs})"
            )
        if name == "array":
            items = ", ".join(map(self.atom, args))
            return f"np.array([{items}], {DTYPES[var.type.elem.name]})" if args else self.empty(var.type)
        if name in ("zeros", "undef"):
            if isinstance(var.type, Arr):
                return self.empty(var.type, "zeros" if name == "zeros" else "empty")
            return self.literal(0, var.type)
        if name == "select":
            c, x, y = args
            return f"{self.atom(x, var.type)} if {self.atom(c)} else {self.atom(y, var.type)}"
        row = PRIMITIVES[name]
        match = row.result(tuple(type_of(a) for a in args))
        operands = [self.atom(a, w) for a, w in zip(args, match[0] if match else [None] * len(args))]
        if name in OPERATORS:
            operands = [f"({t})" if t.startswith("-") and k else t for k, t in enumerate(operands)]
            return f" {OPERATORS[name]} ".join(operands)
        if name in ("neg", "not"):
            return f"{'-' if name == 'neg' else 'not '}{operands[0]}"
        return f"{self.functions[name]}({', '.join(operands)})"

    def conditional(self, bind: Bind, op: If) -> None:
        targets = [self.names.fresh(v.name) for v in bind.vars]
        for head, block in ((f"if {self.atom(op.cond)}:", op.then), ("else:", op.orelse)):
            self.emit(head)
            self.depth += 1
            self.block(block)
            moved = self.plan.moved.get(block, ())
            values = [self.result(r, k in moved, v.type) for k, (r, v) in enumerate(zip(block.results, bind.vars))]
            self.emit(f"{', '.join(targets)} = {', '.join(values)}" if targets else "pass")
            self.depth -= 1
        self.value.update(zip(bind.vars, targets))

    def loop(self, bind: Bind, op: Loop) -> None:
        n = len(op.accs)
        for k, (acc, init) in enumerate(zip(op.accs, op.inits)):
            copied = k in self.plan.copies[bind]
            start = self.result(init, copied, acc.type)
            self.emit(f"{self.bind(acc)} = {start}")
        for v in bind.vars[n:]:
            empty = self.empty(v.type)
            self.emit(f"{self.bind(v)} = {empty}")
        count = self.atom(op.count)
        self.emit(f"for {self.bind(op.index)} in range({count}):")
        self.depth += 1
        early = self.plan.early[op.body]
        rows = [k for k in range(n, len(bind.vars)) if k not in early]
        self.stack(bind, op, early)
        self.block(op.body)
        self.stack(bind, op, rows)
        moved = self.plan.moved[op.body]
        values = [self.result(r, k in moved, op.accs[k].type) for k, r in enumerate(op.body.results[:n])]
        changed = [(self.value[a], v) for a, v in zip(op.accs, values) if self.value[a] != v]
        if changed:
            self.emit(f"{', '.join(a for a, _ in changed)} = {', '.join(v for _, v in changed)}")
        elif self.lines[-1].endswith(":"):
            self.emit("pass")
        self.depth -= 1
        for acc, v in zip(op.accs, bind.vars):
            self.value[v] = self.value[acc]

    def stack(self, bind: Bind, op: Loop, which: Iterable[int]) -> None:
        for k in which:
            self.emit(f"{self.value[bind.vars[k]]}[{self.value[op.index]}] = {self.atom(op.body.results[k])}")
