"""The checker: is a typed program well formed? Run after every pass in tests and where ``HYAD_CHECK=1``.

A failure is a mistake of hyad, never of the user: ``CheckError`` names the pass and the binding, so that a broken pass
is found where it broke.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..core import (
    BOOL,
    INT,
    REAL,
    UNIT,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Constructor,
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
    functions_of,
    leaves,
)
from .primitives import PRIMITIVES

RELATIONS = ("==", "<", "<=", "in")


class CheckError(AssertionError):
    """A pass has made a program that is not well formed."""


def check_after(name: str, program: Program) -> Program:
    """``program``; first checked, as the result of the pass ``name``, if the environment says ``HYAD_CHECK=1``."""
    if os.environ.get("HYAD_CHECK") == "1":
        check(program, name)
    return program


def check(program: Program, after: str = "") -> None:
    """Raise ``CheckError`` unless

    * every variable is bound once, before its uses, and typed;
    * dims are ``Int`` atoms in scope;
    * operands fit an overload of their primitive, and its result the bound variable;
    * both branches give what an ``If`` binds, and a loop's accumulators keep their types.
    """
    _Checker(program, after).run()


class _Checker:
    def __init__(self, program: Program, after: str) -> None:
        self.program, self.after = program, after
        self.bound: set[Var] = set()  # ever
        self.visible: set[Var] = set()
        self.entered: list[Var] = []  # what is visible, in the order in which it was bound
        self.bind: Bind | None = None

    def fail(self, message: str) -> CheckError:
        where = f"{self.program.name or 'a program'}{f' after {self.after}' if self.after else ''}"
        at = f", in `{describe(self.bind)}`" if self.bind is not None else ""
        place = f"\n{self.bind.span.underlined()}" if self.bind is not None and self.bind.span is not None else ""
        return CheckError(f"{where}{at}: {message}{place}")

    def require(self, holds: bool, message: str) -> None:
        if not holds:
            raise self.fail(message)

    # ------------------------------------------------------------------------------------- scopes

    def run(self) -> None:
        p = self.program
        for d in p.dims:
            self.require(d.type == INT, f"the size {d} is {d.type}")
            self.introduce(d)
        for v in p.params:
            self.introduce(v)
        self.require(sum(map(leaves, p.ins)) == len(p.params), "its parameters do not fit the structure `ins`")
        self.require(leaves(p.out) == len(p.body.results), "its results do not fit the structure `out`")
        self.block(p.body)
        for f in functions_of(p.body):
            self.function(f)

    # What is asked for every variable and atom does not word its message before there is something to say.

    def introduce(self, var: Var) -> None:
        if not isinstance(var, Var):
            raise self.fail(f"{var!r} is bound and is no variable")
        if var in self.bound:
            raise self.fail(f"{var} is bound twice")
        self.type(var.type, var)
        self.bound.add(var)
        self.visible.add(var)
        self.entered.append(var)

    def leave(self, mark: int) -> None:
        """What has been introduced since ``mark`` names were visible is visible no longer."""
        self.visible.difference_update(self.entered[mark:])
        del self.entered[mark:]

    def type(self, t: Type | None, what: Var) -> None:
        if isinstance(t, Arr):
            if t.elem not in (REAL, INT, BOOL) and not isinstance(t.elem, Data) or t.rank == 0:
                raise self.fail(f"{what} is of type {t}")
            for d in t.dims:
                if self.atom(d) != INT:
                    raise self.fail(f"the size {d} of {what} is {d.type}")
                if isinstance(d, Const) and d.value < 0:
                    raise self.fail(f"the size {d} of {what} is negative")
        elif t not in (REAL, INT, BOOL, UNIT) and not isinstance(t, Data):
            raise self.fail(f"{what} is of type {t}")

    def atom(self, a: Atom) -> Type:
        """The type of an atom that is read."""
        if isinstance(a, Var):
            if a not in self.visible:
                raise self.fail(f"{a} is read {'outside its scope' if a in self.bound else 'and not bound'}")
        elif not isinstance(a, Const):
            raise self.fail(f"{a!r} is no atom of typed core")
        elif a.type is None:
            raise self.fail(f"the constant {a!r} has no type")
        return a.type  # type: ignore[union-attr, return-value]

    def block(self, block: Block) -> list[Type]:
        """The types of a block's results; what it binds is invisible afterwards."""
        mark = len(self.entered)
        around = self.bind
        for self.bind in block.binds:
            self.operation(self.bind)
        self.bind = around
        types = [self.atom(r) for r in block.results]
        self.leave(mark)
        return types

    # --------------------------------------------------------------------------------- operations

    def operation(self, bind: Bind) -> None:
        op = bind.op
        if isinstance(op, Prim):
            types = [self.atom(a) for a in op.args]
            self.require(len(bind.vars) == 1, "a primitive binds one variable")
            self.introduce(bind.vars[0])
            self.prim(op, types, bind.vars[0].type)
        elif isinstance(op, If):
            self.require(self.atom(op.cond) == BOOL, "the condition is no truth value")
            for name, inner in (("then", op.then), ("else", op.orelse)):
                self.same(self.block(inner), [v.type for v in bind.vars], f"the branch `{name}` gives")
            for v in bind.vars:
                self.introduce(v)
        elif isinstance(op, Loop):
            self.loop(op, bind.vars)
        elif isinstance(op, Check):
            self.require(op.relation in RELATIONS, f"there is no relation {op.relation!r}")
            self.require(self.atom(op.a) == self.atom(op.b) == INT, "sizes and indices are compared, and nothing else")
            self.require(not bind.vars, "a check binds nothing")
        elif isinstance(op, Make):
            self.fields(op.constructor, [self.atom(a) for a in op.args])
            self.same([op.constructor.data], [v.type for v in bind.vars], "a constructor gives")
            self.introduce(bind.vars[0])
        elif isinstance(op, Case):
            data = self.atom(op.value)
            self.require(isinstance(data, Data), f"{op.value} has no constructors")
            self.require(tuple(a.constructor for a in op.arms) == data.constructors, "not one arm for each constructor")
            for arm in op.arms:
                mark = len(self.entered)
                for v in arm.fields:
                    self.introduce(v)
                self.fields(arm.constructor, [v.type for v in arm.fields])
                self.same(self.block(arm.block), [v.type for v in bind.vars], f"the arm `{arm.constructor}` gives")
                self.leave(mark)
            for v in bind.vars:
                self.introduce(v)
        elif isinstance(op, While):
            self.while_(op, bind.vars)
        elif isinstance(op, Apply):
            f = op.function
            self.require(f.body is not None, f"the function {f} has no body")
            self.same([self.atom(a) for a in op.args], [p.type for p in f.params], f"the arguments of {f} are")
            self.same([v.type for v in bind.vars], [r.type for r in f.results], f"{f} gives")
            for v in bind.vars:
                self.introduce(v)
        else:
            raise self.fail(f"{type(op).__name__} is no operation of typed core")

    def fields(self, constructor: Constructor, types: Sequence[Any]) -> None:
        self.require(constructor in constructor.data.constructors, f"{constructor} is not one of {constructor.data}")
        self.same(types, [f.type for f in constructor.fields], f"the fields of {constructor} are")

    def function(self, f: Function) -> None:
        """A function reads its parameters alone, and gives what its callers bind."""
        self.leave(0)
        for p in f.params:
            self.introduce(p)
        self.require(f.body is not None, f"the function {f} has no body")
        self.same(self.block(f.body), [r.type for r in f.results], f"the function {f} gives")  # type: ignore[arg-type]

    def while_(self, op: While, out: Sequence[Var]) -> None:
        width = len(op.accs)
        self.require(len(op.inits) == width, f"{len(op.inits)} starts for {width} accumulators")
        self.require(len(op.body.results) + 1 == len(out) > width, f"{len(op.body.results)} results for {len(out)}")
        self.same([self.atom(a) for a in op.inits], [a.type for a in op.accs], "the accumulators start as")
        mark = len(self.entered)
        for a in op.accs:
            self.introduce(a)
        self.same(self.block(op.cond), [BOOL], "the condition is")
        results = self.block(op.body)
        self.leave(mark)
        self.same(results[:width], [a.type for a in op.accs], "the accumulators go on as")
        for v in out:
            self.introduce(v)
        count = out[width]
        self.same([v.type for v in out[: width + 1]], [*(a.type for a in op.accs), INT], "the accumulators end as")
        for v, t in zip(out[width + 1 :], results[width:]):
            elem, dims = (t.elem, t.dims) if isinstance(t, Arr) else (t, ())
            self.same([v.type], [Arr(elem, (count, *dims))], "what is stacked is")  # type: ignore[arg-type]

    def loop(self, op: Loop, out: Sequence[Var]) -> None:
        self.require(self.atom(op.count) == INT, "the trip count is no integer")
        width = len(op.accs)
        self.require(len(op.inits) == width, f"{len(op.inits)} starts for {width} accumulators")
        self.require(
            len(op.body.results) == len(out) >= width, f"{len(op.body.results)} results for {len(out)} variables"
        )
        self.same([self.atom(a) for a in op.inits], [a.type for a in op.accs], "the accumulators start as")
        mark = len(self.entered)
        self.require(op.index.type == INT, "the index is no integer")
        self.introduce(op.index)
        for a in op.accs:
            self.introduce(a)
        results = self.block(op.body)
        self.leave(mark)
        self.same(results[:width], [a.type for a in op.accs], "the accumulators go on as")
        for v in out:
            self.introduce(v)
        self.same([v.type for v in out[:width]], [a.type for a in op.accs], "the accumulators end as")
        for v, t in zip(out[width:], results[width:]):
            elem, dims = (t.elem, t.dims) if isinstance(t, Arr) else (t, ())
            self.same([v.type], [Arr(elem, (op.count, *dims))], "what is stacked is")  # type: ignore[arg-type]

    def prim(self, op: Prim, types: list[Any], result: Any) -> None:
        name = op.name
        if name == "get":
            self.subscripts(types[0], types[1:], result)
        elif name in ("update", "add-at"):
            self.require(len(types) > 2, "an array, subscripts and a value are needed")
            self.subscripts(types[0], types[1:-1], types[-1])
            self.same([result], types[:1], "the result is")
        elif name == "array":
            self.require(isinstance(result, Arr), "the result is no array")
            item = result.item()
            self.same(types, [item] * len(types), "the items are")
            if isinstance(result.dims[0], Const):
                self.require(result.dims[0].value == len(types), f"{len(types)} items in an array of {result.dims[0]}")
        elif name == "zeros":
            self.require(all(t == INT for t in types), "sizes are integers")
        elif name == "select":
            self.require(len(types) == 3 and types[0] == BOOL, "a truth value and two numbers are needed")
            self.require(not any(isinstance(t, Arr) for t in types), "only scalars are selected")
            self.same(types[1:], [result, result], "the operands are")
        elif name == "product":
            self.require(all(isinstance(t, Arr) and t.rank >= 2 for t in types[:2]), "two matrices are needed")
            self.require([*types[2:]] == [INT, INT, INT, BOOL, BOOL], "three sizes and two truth values are needed")
            self.same([result], [Arr(REAL, op.args[2:4])], "the result is")
        elif name == "undef":
            self.require(not types, "undef has no operands")
        else:
            row = PRIMITIVES.get(name)
            if row is None:
                raise self.fail(f"there is no primitive {name}")
            found = row.result(tuple(types)) if len(types) == len(row.params) else None
            if found is None:
                raise self.fail(f"no overload takes {' '.join(map(str, types))}")
            if found[1] != result:
                raise self.fail(f"the result is {found[1]}, the variable {result}")

    def subscripts(self, array: Any, indices: list[Any], item: Any) -> None:
        if not isinstance(array, Arr):
            raise self.fail(f"{array} has no elements")
        if not 0 < len(indices) <= array.rank:
            raise self.fail(f"{len(indices)} subscripts in an array of {array.rank} dims")
        self.require(all(i == INT for i in indices), "subscripts are integers")
        self.same([item], [array.item(len(indices))], "an element is")

    def same(self, types: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
        if len(types) != len(wanted):
            raise self.fail(f"{what} {len(types)} values, not {len(wanted)}")
        for t, w in zip(types, wanted):
            if not alike(t, w):
                raise self.fail(f"{what} {t}, not {w}")


def alike(a: Any, b: Any) -> bool:
    """Whether two types agree. Only known sizes can differ: run-time numbers may have been found equal."""
    if not (isinstance(a, Arr) and isinstance(b, Arr)):
        return a == b
    if a.elem != b.elem or a.rank != b.rank:
        return False
    return all(
        not (isinstance(x, Const) and isinstance(y, Const)) or x.value == y.value for x, y in zip(a.dims, b.dims)
    )


def describe(bind: Bind) -> str:
    """A binding on one line, without its regions."""
    op = bind.op
    names = " ".join(map(str, bind.vars))
    if isinstance(op, Prim):
        return f"{names} = ({' '.join([op.name, *map(str, op.args)])})"
    if isinstance(op, If):
        return f"{names} = (if {op.cond} ..)"
    if isinstance(op, Loop):
        return f"{names} = (loop {op.count} ..)"
    if isinstance(op, Check):
        return f"(check {op.a} {op.relation} {op.b})"
    if isinstance(op, (Make, Apply)):
        head = op.constructor if isinstance(op, Make) else op.function
        return f"{names} = ({' '.join(map(str, (head, *op.args)))})"
    return f"{names} = ({type(op).__name__.lower()} ..)"
