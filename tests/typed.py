"""A direct evaluator of typed core: what every other path is checked against.

Numbers are Python floats, or mpmath's, which makes finite differences in high precision possible. Arrays are lists,
data are tuples (constructor, field, ...). It shares no code with passes or printers. Reading an ``undef`` fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import mpmath

from hyad.core import (
    INT,
    REAL,
    Apply,
    Arr,
    Block,
    Case,
    Check,
    Const,
    Data,
    If,
    Loop,
    Make,
    Prim,
    Program,
    Var,
    While,
)


class Undefined:
    """What nothing may read: it has no operation."""

    def __repr__(self) -> str:
        return "undefined"


class CheckFailed(Exception):
    """A ``Check`` did not hold."""


def _pow(a: Any, b: Any) -> Any:
    return a ** int(b) if isinstance(b, int) else mpmath.power(a, b)


SCALAR = {
    "pass-on": lambda a, p: a * p if a != 0 else mpmath.mpf(0),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "**": _pow,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "abs": abs,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if b > a else a,
    "sign": lambda a: (a > 0) - (a < 0),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
    "real": mpmath.mpf,
}


class Evaluator:
    """Evaluates blocks; ``counts`` says how often each kind of operation was done."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def atom(self, a: Any, env: dict[Var, Any]) -> Any:
        if type(a) is Var:
            return env[a]
        assert type(a) is Const
        return mpmath.mpf(a.value) if a.type == REAL else a.value

    def block(self, block: Block, env: dict[Var, Any]) -> list[Any]:
        for bind in block.binds:
            op = bind.op
            label = op.name if type(op) is Prim else type(op).__name__
            self.counts[label] = self.counts.get(label, 0) + 1
            values = self.operation(op, bind.vars, env)
            assert len(values) == len(bind.vars)
            env.update(zip(bind.vars, values))
        return [self.atom(r, env) for r in block.results]

    def operation(self, op: Any, out: Sequence[Var], env: dict[Var, Any]) -> Sequence[Any]:
        if type(op) is Prim:
            return [self.prim(op, out[0].type, env)]
        if type(op) is If:
            cond = self.atom(op.cond, env)
            assert cond is True or cond is False, cond
            return self.block(op.then if cond else op.orelse, env)
        if type(op) is Case:
            constructor, *fields = self.atom(op.value, env)
            (arm,) = [arm for arm in op.arms if arm.constructor is constructor]
            env.update(zip(arm.fields, fields))
            return self.block(arm.block, env)
        if type(op) is Make:
            return [(op.constructor, *(self.atom(a, env) for a in op.args))]
        if type(op) is Apply:
            assert len(op.args) == len(op.function.params)
            inner = dict(zip(op.function.params, [self.atom(a, env) for a in op.args]))
            return self.block(op.function.body, inner)
        if type(op) in (Loop, While):
            return self.iterations(op, env)
        assert type(op) is Check
        a, b = self.atom(op.a, env), self.atom(op.b, env)
        holds = {"==": a == b, "<": a < b, "<=": a <= b, "in": 0 <= a < b}[op.relation]
        if not holds:
            raise CheckFailed(op.message)
        return []

    def iterations(self, op: Any, env: dict[Var, Any]) -> list[Any]:
        width = len(op.accs)
        accs = [self.atom(a, env) for a in op.inits]
        stacked: list[list[Any]] = [[] for _ in op.body.results[width:]]
        count = 0
        while True:
            env.update(zip(op.accs, accs))
            if type(op) is Loop:
                env[op.index] = count
                if count >= self.atom(op.count, env):
                    break
            elif not self.block(op.cond, env)[0]:
                break
            results = self.block(op.body, env)
            accs = results[:width]
            for column, x in zip(stacked, results[width:]):
                column.append(x)
            count += 1
        return [*accs, *([] if type(op) is Loop else [count]), *stacked]

    def prim(self, op: Prim, t: Any, env: dict[Var, Any]) -> Any:
        name, args = op.name, [self.atom(a, env) for a in op.args]
        if name == "undef":
            return self.filled(Undefined(), [self.atom(d, env) for d in t.dims] if isinstance(t, Arr) else [])
        if name == "zeros":
            return self.filled(self.zero(t.elem), [self.atom(d, env) for d in t.dims])
        if name == "array":
            return list(args)
        if name == "get":
            found = args[0]
            for i in args[1:]:
                assert 0 <= i < len(found)
                found = found[i]
            return found
        if name in ("update", "add-at"):
            return self.changed(args[0], args[1:-1], args[-1], name == "add-at")
        if name == "select":
            return args[1] if args[0] else args[2]
        assert not any(isinstance(a, Undefined) for a in args), op
        value = SCALAR[name](*args) if name in SCALAR else getattr(mpmath, name)(*args)
        return int(value) if t == INT else mpmath.mpf(value) if t == REAL else value

    def filled(self, x: Any, dims: Sequence[int]) -> Any:
        return [self.filled(x, dims[1:]) for _ in range(dims[0])] if dims else x

    def zero(self, elem: Any) -> Any:
        if isinstance(elem, Data):
            assert not elem.constructors[0].fields
            return (elem.constructors[0],)
        return mpmath.mpf(0) if elem == REAL else 0

    def changed(self, a: Any, indices: Sequence[int], x: Any, add: bool) -> Any:
        if not indices:
            return self.plus(a, x) if add else x
        i = indices[0]
        assert 0 <= i < len(a)
        return [*a[:i], self.changed(a[i], indices[1:], x, add), *a[i + 1 :]]

    def plus(self, a: Any, x: Any) -> Any:
        return [self.plus(u, v) for u, v in zip(a, x)] if isinstance(a, list) else a + x


def evaluate(program: Program, args: Sequence[Any], sizes: Sequence[int] = ()) -> list[Any]:
    """The results of a typed program at values of its flat parameters; ``sizes`` are those of its run-time dims."""
    return run(program, args, sizes)[0]


def run(program: Program, args: Sequence[Any], sizes: Sequence[int] = ()) -> tuple[list[Any], dict[str, int]]:
    """The results, and how often each kind of operation was done."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        evaluator = Evaluator()
        env = dict(zip((*program.dims, *program.params), (*sizes, *map(number, args))))
        return evaluator.block(program.body, env), evaluator.counts
    finally:
        sys.setrecursionlimit(limit)


def number(x: Any) -> Any:
    """Python's numbers as the evaluator's, in arrays and data as well."""
    if type(x) is float:
        return mpmath.mpf(x)
    if type(x) is list:
        return [number(y) for y in x]
    return (x[0], *map(number, x[1:])) if type(x) is tuple else x


# ------------------------------------------------------------------------------ data as a vector space


def reals(x: Any, t: Any) -> list[Any]:
    """The reals in a value of a type, in order."""
    if isinstance(t, Arr):
        return [r for y in x for r in reals(y, t.item())]
    if isinstance(t, Data):
        return [r for y, f in zip(x[1:], x[0].fields) for r in reals(y, f.type)]
    return [x] if t == REAL else []


def with_reals(x: Any, t: Any, values: Any) -> Any:
    """``x`` with its reals taken from an iterator."""
    if isinstance(t, Arr):
        return [with_reals(y, t.item(), values) for y in x]
    if isinstance(t, Data):
        return (x[0], *(with_reals(y, f.type, values) for y, f in zip(x[1:], x[0].fields)))
    return next(values) if t == REAL else x
