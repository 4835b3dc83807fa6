"""Loops over all places of a matrix by one index: two loops, which need no division."""

from __future__ import annotations

from ..core import (
    INT,
    Atom,
    Bind,
    Block,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    free_vars,
    substitute,
)
from ..program.builder import Builder
from ..program.dead import tidy
from ..program.rebuild import Rebuild, rebuilt


def reshaped(program: Program) -> Program:
    """Takes a loop over the places of a matrix that finds the row and column of each by division as two loops, over
    the rows and over the columns.

    ``(ifold (fn [s k] (+ s (get a (// k m) (% k m)))) 0.0 (* n m))``  =>
    ``(ifold (fn [s i] (ifold (fn [s j] (+ s (get a i j))) s m)) 0.0 n)``, in the same order.
    Design decision: not where a vector is stacked, whose loop is one.
    """
    if not any(type(x.op) is Prim and x.op.name in ("//", "%") for x in all_binds(program.body)):
        return program
    pass_ = Reshaped(Builder(), program)
    made = rebuilt(program, pass_)
    return made if pass_.found else program


class Reshaped(Rebuild):
    """``reshaped`` for a program."""

    def __init__(self, builder: Builder, program: Program) -> None:
        super().__init__(builder)
        self.found = False
        products = (b for b in all_binds(program.body) if type(b.op) is Prim and b.op.name == "*")
        self.products = {b.vars[0]: b.op.args for b in products if b.vars[0].type == INT}

    def bind(self, bind: Bind) -> None:
        sizes = self.sizes(bind.op) if type(bind.op) is Loop else None
        if sizes is not None:
            bind = by_rows(bind, *sizes)
            self.found = True
        self.copy(bind)

    def sizes(self, op: Loop) -> tuple[Atom, Atom] | None:
        """How many rows and columns the matrix has whose places a loop counts; None where it does not."""
        sizes = self.products.get(op.count)  # type: ignore[call-overload]
        if sizes is None or len(op.body.results) > len(op.accs) or op.snapshots is not None:
            return None
        if not all(self.b.nonnegative(self.b.affine(self.atom(a))) for a in sizes):
            return None
        divisors = [x.op.args[1] for x in all_binds(op.body) if divided(x, op.index)]
        return next(((n, m) for n, m in (sizes, sizes[::-1]) if m in divisors), None)


def divided(bind: Bind, index: Var) -> bool:
    """Whether a binding is the quotient or the remainder of an index."""
    return type(bind.op) is Prim and bind.op.name in ("//", "%") and bind.op.args[0] is index


def by_rows(bind: Bind, rows: Atom, columns: Atom) -> Bind:
    """A loop over the places of a matrix as one over its rows, and one over the columns inside it."""
    op = bind.op
    i, j = (Var(name, INT, op.index.span, soft=op.index.soft) for name in "ij")
    first = Var("first", INT)
    found = {x.vars[0]: x.op.name for x in all_binds(op.body) if divided(x, op.index) and x.op.args[1] == columns}
    body = tidy(substitute(op.body, {v: i if name == "//" else j for v, name in found.items()}))
    before: tuple[Bind, ...] = ()
    if op.index in free_vars(body):
        before = (Bind((first,), Prim("*", (i, columns))),)
        body = Block((Bind((op.index,), Prim("+", (first, j))), *body.binds), body.results)
    accs = tuple(Var(a.name, a.type, a.span, a.given) for a in op.accs)
    out = tuple(Var(v.name, v.type, v.span, v.given) for v in bind.vars)
    inner = Bind(out, Loop(columns, j, accs, op.accs, body), bind.span)
    return Bind(bind.vars, Loop(rows, i, op.inits, accs, Block((*before, inner), out)), bind.span, bind.soft)
