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
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hyad.core import (
    BOOL,
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Type,
    Var,
    While,
    all_binds,
    as_program,
    functions_of,
)
from hyad.errors import CompileError, HyadError, ModelTypeError, Span
from hyad.program.primitives import BUILTIN, PRIMITIVES
from hyad.program.reader import deep

from .identifiers import Names
from .lower import Pairs, measured, plan, type_of
from .paired import paired
from .ranges import OVERFLOW, overflows
from .values import Misfit, back, into

DTYPES = {"Real": "float", "Int": "np.int64", "Bool": "bool"}
OPERATORS = {"+": "+", "-": "-", "*": "*", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "=": "==", "!=": "!="}
OPERATORS |= {"and": "and", "or": "or"}
FUNCTIONS = {"/": "divide", "//": "floor_divide", "%": "modulo", "**": "power"}
RESERVED = frozenset((*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "np", "spans", "PRIMITIVES"))
RESERVED |= {"BoundsError", "ModelTypeError", "cells", "wrapped"}
#: What makes no integers that may be negative of those that are not.
COUNTS = ("+", "*", "//", "%", "min", "max")
RELATIONS = {"==": "{a} == {b}", "<": "{a} < {b}", "<=": "{a} <= {b}", "in": "0 <= {a} < {b}"}


def print_python(program: Program) -> str:
    """A typed program as the text of a Python module with one function, and those that it calls.

    It takes the flat parameters and returns the tuple of flat results; named dims are read from the arrays' shapes.
    A cell of data is a tuple, the constructor's name before its fields.
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
    given = [_conversion(p.type, p.name) for p in program.params]
    made = [_result(type_of(r)) for r in program.body.results]
    recursive = bool(printer.functions_called)

    def call(*args: Any) -> tuple:
        values = [convert(a) for convert, a in zip(given, args, strict=True)]
        try:
            if recursive:
                out = _recursive(function, values)
            else:
                with np.errstate(all="ignore"):
                    out = function(*values)
        except HyadError as error:
            if error.span is None:  # a user's primitive refuses
                error.span = _place(error, text, printer.asked)
            raise
        return tuple(convert(r) for convert, r in zip(made, out))

    call.__name__, call.__doc__ = printer.name, text
    return call


def _place(error: HyadError, text: str, asked: Mapping[str, Span | None]) -> Span | None:
    """The form whose line of a text has raised an error."""
    lines, found = text.splitlines(), None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith("<hyad ") and number <= len(lines):
            found = asked.get(lines[number - 1].strip(), found)
    return found


def cells(items: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An array of data of the Python target: NumPy itself would take the tuples for rows."""
    made = np.empty(len(items), object)
    for k, cell in enumerate(items):
        made[k] = cell
    return made.reshape(shape)


def _recursive(function: Callable[..., Any], values: list[Any]) -> Any:
    """A call that may go deep: again on a large stack where the ordinary one is too small. Arguments are not changed,
    so nothing has happened."""

    def run() -> Any:
        with np.errstate(all="ignore"):
            return function(*values)

    try:
        return deep(run)
    except HyadError as error:
        if "nested too deeply" not in error.message:
            raise
        raise HyadError("the recursion is too deep for the stack", None, "write it as a tail call") from None


def _result(t: Type) -> Callable[[Any], Any]:
    return (lambda cell: back(cell, t)) if isinstance(t, Data) else _conversion(t)


def _conversion(t: Type, name: str = "") -> Callable[[Any], Any]:
    if isinstance(t, Data):

        def convert(value: Any) -> Any:
            try:
                return into(value, t)
            except Misfit as error:
                raise ModelTypeError(f"argument `{name}`: {error}") from None

        return convert
    if isinstance(t, Arr):
        dtype = {"Real": np.float64, "Int": np.int64, "Bool": np.bool_}[t.elem.name]
        return lambda a: np.ascontiguousarray(a, dtype)
    return {"Real": float, "Int": int, "Bool": bool}.get(t.name, lambda value: value)


class _Printer:
    """One pass over the pruned program; each binding is a line."""

    def __init__(self, program: Program):
        self.functions_called = functions_of(program.body)
        self.pairs: Pairs = paired(self.functions_called)
        self.plan = plan(program, self.pairs)
        self.program = self.plan.program
        self.overflows = overflows(self.program)
        self.wraps = False  # whether an integer's sum or product may pass 64 bits
        self.names = Names(RESERVED)
        self.name = self.names.fresh(program.name or "model")
        self.called = {f: self.names.fresh(f.name) for f in self.functions_called}
        self.current: Function | None = None
        self.helpers = False
        self.value: dict[Var, str] = {}
        self.functions: dict[str, str] = {}  # primitive -> its name in the text
        self.tables: dict[int, tuple[str, Any]] = {}
        self.differences: set[Var] = set()  # integers that may be negative
        self.spans: list[Any] = []
        self.asked: dict[str, Span | None] = {}  # lines that call a user's primitive, and the forms that they are of
        self.errors: set[str] = set()
        self.lines: list[str] = []
        self.depth = 1

    def module(self) -> str:
        program = self.program
        blocks = [program.body, *(f.body for f in self.functions_called if f.body is not None)]
        used = {b.op.name for block in blocks for b in all_binds(block) if isinstance(b.op, Prim)}
        for name in sorted(used & PRIMITIVES.keys()):
            if name not in OPERATORS and name not in ("neg", "not"):
                self.functions[name] = self.names.fresh(FUNCTIONS.get(name, name))
        params = [self.bind(p) for p in program.params]
        self.differences.update(p for p in program.params if p.type == INT)
        for p in program.params:
            for axis, d in enumerate(p.type.dims if isinstance(p.type, Arr) else ()):
                if isinstance(d, Var) and d not in self.value:
                    self.emit(f"{self.bind(d)} = {self.value[p]}.shape[{axis}]")
        self.block(program.body)
        moved = self.plan.moved[program.body]
        results = [self.result(r, k in moved) for k, r in enumerate(program.body.results)]
        self.emit(f"return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        main = self.lines
        others = [line for f in self.functions_called for line in ["", "", *self.function(f)]]
        head = ["import numpy as np", ""]
        if self.errors:
            head.insert(1, f"from hyad.errors import {', '.join(sorted(self.errors))}")
        if self.helpers:
            head.insert(len(head) - 1, "from hyad.codegen.python import cells")
        if self.functions:
            head.insert(len(head) - 1, "from hyad.program.primitives import PRIMITIVES")
            head += [f"{text} = PRIMITIVES[{name!r}]" for name, text in self.functions.items()]
        if self.spans:
            head.append(f"spans = [None] * {len(self.spans)}")
        for name, t, value in self.tables.values():
            items = re.sub(r"\b(nan|inf)\b", r"np.\1", repr(np.asarray(value).tolist()))
            head.append(f"{name} = np.array({items}, {DTYPES[t.elem.name]})")
        if self.wraps:
            head += ["", "", "def wrapped(n):", "    return (n + 2**63) % 2**64 - 2**63"]
        doc = (program.doc or "").strip().split("\n")[0]
        body = [f"def {self.name}({', '.join(params)}):", *([f"    {doc!r}"] if doc else []), *main, *others]
        return "\n".join([*head, *([""] if head[-1] else []), "", *body, ""])

    # ------------------------------------------------------------------------------- functions

    def function(self, f: Function) -> list[str]:
        """A recursive function; a tail call of itself is another round of a loop."""
        program = as_program(f)
        own = {k: program.params.index(f.params[j]) for k, j in self.pairs[f].items()}
        lent = [k for k, r in enumerate(f.results) if isinstance(r.type, Arr) and not measured(f, k)]
        self.plan = plan(program, self.pairs, own, lent)
        self.program, self.current, self.lines, self.depth = self.plan.program, f, [], 1
        self.overflows = overflows(self.program)
        self.names.enter()
        self.value = {}
        params = [self.bind(p) for p in f.params]
        self.differences.update(p for p in f.params if p.type == INT)
        self.params = dict(zip(f.params, params))
        at = len(self.lines)
        self.looped = False
        self.depth = 2
        self.tail(self.program.body, ())
        if self.looped:
            self.lines.insert(at, "    while True:")
        else:
            self.lines = [line[4:] for line in self.lines]
        self.names.leave()
        return [f"def {self.called[f]}({', '.join(params)}):", *self.lines]

    def tail(self, block: Block, outer: tuple[Block, ...]) -> None:
        """A block whose results are the function's."""
        last = block.binds[-1] if block.binds else None
        chain = (*outer, block)
        op = last.op if last is not None and last.vars == block.results and last.vars else None
        if isinstance(op, (If, Case)):
            self.block(block, block.binds[:-1])
            tests = [f"if {self.atom(op.cond)}:", "else:"] if isinstance(op, If) else self.tests(op)
            arms = [op.then, op.orelse] if isinstance(op, If) else [a.block for a in op.arms]
            for k, (test, inner) in enumerate(zip(tests, arms)):
                self.emit(test)
                self.depth += 1
                if isinstance(op, Case):
                    self.take_apart(op, k)
                self.tail(inner, chain)
                self.depth -= 1
        elif isinstance(op, Apply) and op.function is self.current and self.jumps(op):
            self.block(block, block.binds[:-1])
            changed = [(self.params[p], self.atom(a, p.type)) for p, a in zip(self.current.params, op.args)]
            changed = [(name, value) for name, value in changed if name != value]
            if changed:
                self.emit(f"{', '.join(n for n, _ in changed)} = {', '.join(v for _, v in changed)}")
            self.emit("continue")
            self.looped = True
        else:
            self.block(block)
            moved = {k for b in chain for k in self.plan.moved.get(b, ())}
            assert self.current is not None
            types = [r.type for r in self.current.results]
            values = [self.result(r, k in moved, t) for k, (r, t) in enumerate(zip(block.results, types))]
            self.emit(f"return {self.tuple(values)}")

    def jumps(self, op: Apply) -> bool:
        """Whether arrays that a function changes in place go round in their own memory."""
        assert self.current is not None
        taken = self.pairs[self.current].values()
        arrays = [(j, a) for j, a in enumerate(op.args) if isinstance(type_of(a), Arr)]
        return all(self.plan.root(a).given if j in taken else not self.plan.root(a).given for j, a in arrays)

    @staticmethod
    def tuple(values: Sequence[str]) -> str:
        return f"({', '.join(values)}{',' if len(values) == 1 else ''})"

    # ------------------------------------------------------------------------- data and control

    def tests(self, op: Case) -> list[str]:
        """The line before each arm."""
        value = self.atom(op.value)
        names = [f"{value}[0] == {arm.constructor.name!r}" for arm in op.arms]
        if len(names) == 1:
            return ["if True:"]
        return [f"if {names[0]}:", *(f"elif {n}:" for n in names[1:-1]), "else:"]

    def take_apart(self, op: Case, k: int) -> None:
        fields = op.arms[k].fields
        if fields:
            names = self.tuple(["_", *(self.bind(f) for f in fields)])
            self.emit(f"{names[1:-1]} = {self.atom(op.value)}")

    def case(self, bind: Bind, op: Case) -> None:
        targets = [self.names.fresh(v.name) for v in bind.vars]
        tests = self.tests(op)
        for k, arm in enumerate(op.arms):
            self.emit(tests[k])
            self.depth += 1
            self.take_apart(op, k)
            self.branch(arm.block, bind, targets)
            self.depth -= 1
        self.value.update(zip(bind.vars, targets))

    def apply(self, bind: Bind, op: Apply) -> None:
        pairs = {j: k for k, j in self.pairs[op.function].items()}
        args = []
        for j, (a, p) in enumerate(zip(op.args, op.function.params)):
            args.append(self.result(a, pairs.get(j, -1) in self.plan.copies[bind], p.type))
        names = [self.bind(v) for v in bind.vars]
        call = f"{self.called[op.function]}({', '.join(args)})"
        self.emit(f"{self.tuple(names)[1:-1].rstrip()} = {call}" if names else call)

    def while_(self, bind: Bind, op: While) -> None:
        n = len(op.accs)
        for k, (acc, init) in enumerate(zip(op.accs, op.inits)):
            start = self.result(init, k in self.plan.copies[bind], acc.type)
            self.emit(f"{self.bind(acc)} = {start}")
        count = self.bind(bind.vars[n])
        self.emit(f"{count} = 0")
        rows = [self.bind(v) for v in bind.vars[n + 1 :]]
        for row in rows:
            self.emit(f"{row} = []")
        self.emit("while True:")
        self.depth += 1
        self.block(op.cond)
        self.emit(f"if not {self.atom(op.cond.results[0])}:")
        self.emit("    break")
        early = self.plan.early[op.body]
        for k in early:
            self.emit(f"{rows[k - n]}.append({self.atom(op.body.results[k])}.copy())")
        self.block(op.body)
        for k in range(n, len(op.body.results)):
            if k not in early:
                r = op.body.results[k]
                copy = ".copy()" if isinstance(type_of(r), Arr) else ""
                self.emit(f"{rows[k - n]}.append({self.atom(r)}{copy})")
        self.next_round(op, n)
        self.emit(f"{count} += 1")
        self.depth -= 1
        for row, v in zip(rows, bind.vars[n + 1 :]):
            t = v.type
            assert isinstance(t, Arr)
            if isinstance(t.elem, Data):
                self.emit(f"{row} = {self.cells(row, t)}")
            else:
                self.emit(f"{row} = np.array({row}, {self.dtype(t)}).reshape({self.shape(t.dims)})")
        for acc, v in zip(op.accs, bind.vars):
            self.value[v] = self.value[acc]

    def next_round(self, op: Loop | While, n: int) -> None:
        moved = self.plan.moved[op.body]
        values = [self.result(r, k in moved, op.accs[k].type) for k, r in enumerate(op.body.results[:n])]
        changed = [(self.value[a], v) for a, v in zip(op.accs, values) if self.value[a] != v]
        if changed:
            self.emit(f"{', '.join(a for a, _ in changed)} = {', '.join(v for _, v in changed)}")
        elif self.lines[-1].endswith(":"):
            self.emit("pass")

    def cells(self, items: str, t: Arr) -> str:
        """An array of data: NumPy would take the tuples apart."""
        self.helpers = True
        return f"cells({items}, {self.shape(t.dims)})"

    # ----------------------------------------------------------------------------------- atoms

    def dtype(self, t: Arr) -> str:
        return "object" if isinstance(t.elem, Data) else DTYPES[t.elem.name]

    def bind(self, var: Var) -> str:
        self.value[var] = self.names.fresh(var.name)
        return self.value[var]

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def literal(self, value: Any, t: Type) -> str:
        if t == REAL:
            value = float(value)
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        if value is None or isinstance(t, Data):
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
        """A table for a loop that may be empty is made before that is known: its size may be negative."""
        sizes = [f"max(0, {self.atom(d)})" if d in self.differences else self.atom(d) for d in dims]
        return f"({', '.join(sizes)}{',' if len(dims) == 1 else ''})"

    def empty(self, t: Arr, how: str = "empty") -> str:
        dtype = self.dtype(t)
        return f"np.{how}({self.shape(t.dims)}{'' if dtype == 'float' else f', {dtype}'})"

    # ------------------------------------------------------------------------------- statements

    def block(self, block: Block, binds: Sequence[Bind] | None = None) -> None:
        for bind in block.binds if binds is None else binds:
            op = bind.op
            if isinstance(op, Prim):
                self.prim(bind, op)
            elif isinstance(op, If):
                self.conditional(bind, op)
            elif isinstance(op, Loop):
                self.loop(bind, op)
            elif isinstance(op, Check):
                self.check(bind, op)
            elif isinstance(op, Case):
                self.case(bind, op)
            elif isinstance(op, While):
                self.while_(bind, op)
            elif isinstance(op, Apply):
                self.apply(bind, op)
            elif isinstance(op, Make):
                fields = [self.atom(a, f.type) for a, f in zip(op.args, op.constructor.fields)]
                fields = [f"{t}.copy()" if isinstance(type_of(a), Arr) else t for t, a in zip(fields, op.args)]
                self.emit(f"{self.bind(bind.vars[0])} = {self.tuple([repr(op.constructor.name), *fields])}")

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
        if var.type == INT and (op.name not in COUNTS or not self.differences.isdisjoint(args)):
            self.differences.add(var)
        text = self.expression(op, var)
        if bind in self.overflows.wrapped:
            self.wraps = True
            text = f"wrapped({text})"
        self.emit(f"{self.bind(var)} = {text}")
        if op.name in self.functions and op.name not in BUILTIN:
            line = self.lines[-1].strip()
            self.asked[line] = bind.span if self.asked.get(line, bind.span) == bind.span else None
        if bind in self.overflows.checked:
            self.errors.add("BoundsError")
            self.emit(f"if not -(2**63) <= {self.value[var]} < 2**63:")
            self.emit(f"    raise BoundsError({OVERFLOW!r}, spans[{len(self.spans)}])")
            self.spans.append(bind.span)

    def expression(self, op: Prim, var: Var) -> str:
        name, args = op.name, op.args
        if name == "get":
            subs = ", ".join(map(self.atom, args[1:]))
            return (
                f"{self.atom(args[0])}[{subs}]" if isinstance(var.type, Arr) else f"{self.atom(args[0])}.item({subs})"
            )
        if isinstance(var.type, Arr) and isinstance(var.type.elem, Data) and name in ("zeros", "array", "undef"):
            if name == "array":
                rows = "np.ravel" if args and isinstance(type_of(args[0]), Arr) else ""
                items = [f"*{rows}({self.atom(a)})" if rows else self.atom(a) for a in args]
                return self.cells(f"[{', '.join(items)}]", var.type)
            length = " * ".join(map(self.atom, var.type.dims))
            return self.cells(f"[{self.tuple([repr(var.type.elem.constructors[0].name)])}] * ({length})", var.type)
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
            self.branch(block, bind, targets)
            self.depth -= 1
        self.value.update(zip(bind.vars, targets))

    def branch(self, block: Block, bind: Bind, targets: list[str]) -> None:
        self.block(block)
        moved = self.plan.moved.get(block, ())
        values = [self.result(r, k in moved, v.type) for k, (r, v) in enumerate(zip(block.results, bind.vars))]
        self.emit(f"{', '.join(targets)} = {', '.join(values)}" if targets else "pass")

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
        self.next_round(op, n)
        self.depth -= 1
        for acc, v in zip(op.accs, bind.vars):
            self.value[v] = self.value[acc]

    def stack(self, bind: Bind, op: Loop, which: Iterable[int]) -> None:
        for k in which:
            self.emit(f"{self.value[bind.vars[k]]}[{self.value[op.index]}] = {self.atom(op.body.results[k])}")
