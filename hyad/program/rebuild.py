"""Passes that rebuild a program: ``Rebuild`` copies it through a builder, and a pass overrides what it treats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..core import (
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Type,
    Var,
    While,
    all_binds,
    given,
    type_of,
    with_body,
)
from .affine import Affine, affine_add
from .bounds import Scope
from .builder import Builder, Iteration
from .primitives import PRIMITIVES


class Rebuild:
    """Copies a program through a builder: the base of every typed pass.

    ``here`` maps the old program's variables to atoms of the new one. A pass overrides ``bind`` for the operations
    that it treats; everything else is rebuilt as it was, with sharing and folding done on the way.
    """

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self.here: dict[Var, Atom] = {}
        self.holds: dict[Atom, bool] = {}  # the conditions of the branches that are being rebuilt

    def atom(self, a: Atom) -> Atom:
        return self.here.get(a, a) if type(a) is Var else a

    def atoms(self, args: Sequence[Atom]) -> tuple[Atom, ...]:
        here = self.here
        return tuple(here.get(a, a) if type(a) is Var else a for a in args)

    def moved(self, affine: Affine) -> Affine:
        """An integer in the new program's variables."""
        total: Affine = (affine[0], {})
        for v, k in affine[1].items():
            total = affine_add(total, self.b.affine(self.atom(v)), k)
        return total

    def type(self, t: Type) -> Type:
        """A type with the new program's sizes."""
        return Arr(t.elem, self.atoms(t.dims)) if isinstance(t, Arr) else t

    def block(self, block: Block) -> tuple[Atom, ...]:
        """Rebuild a block's bindings in the open scope; its results."""
        b, soft = self.b, self.b.soft
        for bind in block.binds:
            b.span, b.soft = bind.span, bind.soft
            self.bind(bind)
        b.soft = soft
        return self.atoms(block.results)

    def remade(self, block: Block) -> Block:
        """A block of the builder's program as this pass rebuilds it, bound nowhere yet."""
        with self.b.region() as scope:
            results = self.block(block)
        return self.b.close(scope, results)

    def line(self, bind: Bind) -> None:
        """Rebuild one binding of a block; what differentiation made stays its own."""
        b, soft = self.b, self.b.soft
        b.span, b.soft = bind.span, bind.soft
        self.bind(bind)
        b.soft = soft

    def bind(self, bind: Bind) -> None:
        self.copy(bind)

    def copy(self, bind: Bind) -> None:
        """Rebuild one binding as it is."""
        op, b = bind.op, self.b
        if type(op) is Prim:
            self.here[bind.vars[0]] = self.prim(op, bind.vars[0])
        elif type(op) is If:
            self.define(bind, self.if_(op, bind))
        elif type(op) is Loop:
            self.define(bind, self.loop(op, bind))
        elif type(op) is Check:
            a, c = self.atom(op.a), self.atom(op.b)
            b.check(op, a, c)
        elif type(op) is Make:
            (v,) = bind.vars
            self.here[v] = b.make(op.constructor, self.atoms(op.args), v.name, v.given)
        elif type(op) is Apply:
            self.define(bind, b.apply(op.function, self.atoms(op.args), [v.name for v in bind.vars], given(bind)))
        elif type(op) is Case:
            self.define(bind, self.case(op, bind))
        elif type(op) is While:
            self.define(bind, self.while_(op, bind))
        else:
            raise AssertionError(op)

    def define(self, bind: Bind, atoms: Sequence[Atom]) -> None:
        for v, a in zip(bind.vars, atoms):
            self.here[v] = a

    def prim(self, op: Prim, var: Var) -> Atom:
        b, args = self.b, self.atoms(op.args)
        name = op.name
        if name in PRIMITIVES:
            return b.prim(name, *args, hint=var.name, given=var.given)
        if name == "get":
            return b.get(*args, hint=var.name, given=var.given)
        if name == "array":
            return b.array(args, hint=var.name, given=var.given)
        if name == "zeros":
            return b.zeros(self.type(var.type), hint=var.name, given=var.given)  # type: ignore[arg-type]
        if name == "update":
            return b.update(args[0], args[1:-1], args[-1], hint=var.name)
        if name == "add-at":
            return b.add_at(args[0], args[1:-1], args[-1], hint=var.name)
        if name == "select":
            return b.select(*args)
        if name == "undef":
            return b.undef(self.type(var.type))  # type: ignore[arg-type]
        if name == "product":
            return b.array_op(name, args, self.type(var.type), var.name, var.given)
        if name == "stop" or name in b.rules:
            return b.array_op(name, args, type_of(args[0]), var.name, var.given)
        raise AssertionError(name)

    def if_(self, op: If, bind: Bind) -> Sequence[Atom]:
        cond = self.atom(op.cond)
        known = cond.value if type(cond) is Const else self.holds.get(cond)
        if known is not None and not self.b.plain:
            return self.block(op.then if known else op.orelse)
        blocks = [self.branch(cond, block, holds) for block, holds in ((op.then, True), (op.orelse, False))]
        return self.b.if_(
            cond, *blocks, names=[v.name for v in bind.vars], given=bind.vars[0].given if bind.vars else False
        )

    def case(self, op: Case, bind: Bind) -> Sequence[Atom]:
        value = self.atom(op.value)
        known = self.b.made.get(value) if type(value) is Var else None
        if known is not None and not self.b.plain:
            arm = op.arms[known.constructor.tag]
            self.here.update(zip(arm.fields, known.args))
            return self.block(arm.block)
        arms = []
        for arm in op.arms:
            with self.b.arm(arm.constructor) as (scope, fields):
                self.here.update(zip(arm.fields, fields))
                results = self.block(arm.block)
            arms.append((arm.constructor, fields, scope, results))
        return self.b.case(
            value, arms, [v.name for v in bind.vars], given(bind), [self.type(v.type) for v in bind.vars]
        )

    def while_(self, op: While, bind: Bind) -> Sequence[Atom]:
        width, span = len(op.accs), self.b.span

        def cond(*accs: Atom) -> Atom:
            self.here.update(zip(op.accs, accs))
            return self.block(op.cond)[0]

        def body(*accs: Atom):
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body)
            return results[:width], results[width:]

        names = [v.name for k, v in enumerate(bind.vars) if k != width]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        out = self.b.while_(self.atoms(op.inits), cond, body, names, [a.name for a in op.accs], given(bind), kept)
        self.b.span = span
        return out

    def branch(self, cond: Atom, block: Block, holds: bool) -> tuple[Scope, Sequence[Atom]]:
        with self.b.branch_region(cond, holds) as scope:
            self.entered(cond, holds)
            around, self.holds = self.holds, {**self.holds, cond: holds}
            results = self.block(block)
            self.holds = around
        return scope, results

    def entered(self, cond: Atom, holds: bool) -> None:
        """What a pass does where a branch begins."""

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        width = len(op.accs)

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = self.block(op.body)
            return results[:width], results[width:]

        return self.loop_like(op, bind, body)

    def filling(self, op: Loop, bind: Bind) -> tuple[list[Atom], list[str], list[str]]:
        """What a loop starts from that stores what an old one stacks, element by element; the names of what it gives,
        and of its accumulators."""
        width, names = len(op.accs), [v.name for v in bind.vars]
        arrays = (self.b.undef(self.type(v.type)) for v in bind.vars[width:])  # type: ignore[arg-type]
        return [*self.atoms(op.inits), *arrays], names, [*(a.name for a in op.accs), *names[width:]]

    def loop_like(self, op: Loop, bind: Bind, body: Iteration) -> Sequence[Atom]:
        """A loop with the count, the start and the names of an old one, and a body that ``body`` makes."""
        span = self.b.span
        out = self.b.loop(
            self.atom(op.count),
            self.atoms(op.inits),
            body,
            [v.name for v in bind.vars],
            op.index.name,
            [a.name for a in op.accs],
            given(bind),
            soft=op.index.soft,
            snapshots=None if op.snapshots is None else self.atom(op.snapshots),
        )
        self.b.span = span
        return out


def rebuilt(program: Program, pass_: Rebuild) -> Program:
    """A whole program as a pass with a fresh builder rebuilds it; parameters and sizes stay themselves."""
    b = pass_.b
    b.sizes.update(program.dims)
    results = pass_.block(program.body)
    return with_body(program, Block(b.block(), tuple(results)))


class TakesLoops(Protocol):
    """A pass that says of a loop, before anything is rebuilt, whether it would treat it."""

    def takes(self, bind: Bind) -> bool: ...


def taken(program: Program, pass_: TakesLoops) -> Program:
    """The program as a pass rebuilds it, or itself where that would take none of its loops."""
    found = any(type(x.op) is Loop and pass_.takes(x) for x in all_binds(program.body))
    return rebuilt(program, pass_) if found else program  # type: ignore[arg-type]


def rebuild(program: Program, make: Callable[[Builder], Rebuild] = Rebuild) -> Program:
    """``rebuilt`` by the pass that ``make`` gives for a builder; by none but the builder's own rules without one."""
    return rebuilt(program, make(Builder()))
