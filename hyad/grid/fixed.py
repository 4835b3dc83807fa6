"""Sums at places that only data know, the same to the last bit in every call: in fixed point.

Threads add to such a place in any order, and sums of reals differ by their order. Sums of integers do not. So a first
loop looks how large the terms are (``p``: a power of two that makes the largest one less than 1) and how many there
are; a second one adds integers to three arrays, atomically: for a term ``x`` the digits of ``p x`` in the base ``w``,
each rounded, of which a sum of so many fits into 64 bits. From these the sums are made::

    (loop n (fn [i a] (add-at a (get at i) x)) a)
    =>  (loop n (fn [i c d e f] (add-at c (get at i) (round (* w p x))) (add-at d ..) (add-at e ..) ..) 0 0 0 0)
        added to a: (/ (+ c (/ d w) (/ e w w)) w p)

With ``w`` = 2^40, for up to four million terms, that is 120 bits below the largest term. The fourth array has the terms
that are no numbers or infinite: what they make of a sum does not depend on their order either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

from ..core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    If,
    Loop,
    Prim,
    Type,
    Var,
    all_binds,
    blocks_of,
    integer,
    reads,
    real,
    type_of,
)
from ..passes.spread import reductions
from ..program.dead import tidy
from .elements import written
from .nesting import adding, alone
from .teams import renamed

#: By how many terms there are: the base of the digits. So many of them fit into 63 bits, and three are more than reals
#: have.
BASES = ((1 << 22, 2.0**40), (1 << 32, 2.0**30))
LEAST = 2.0**20  # and for any more
STEP = 2.0**32  # the power of two is found in steps of this size, then of 2
STEPS = 34  # so many for the least and the largest real
NEGATIVE = 1 << 32  # the terms that are minus infinity are counted from here on, others below

Put = Callable[["Steps", Sequence[Atom], tuple[Atom, ...], Atom], list[Atom]]


class Steps:
    """Bindings, written one after the other."""

    def __init__(self) -> None:
        self.binds: list[Bind] = []

    def __call__(self, name: str, *args: Atom, t: Type = REAL, hint: str = "t") -> Var:
        self.binds.append(Bind((Var(hint, t),), Prim(name, args)))
        return self.binds[-1].vars[0]

    def finite(self, x: Atom) -> Var:
        return self("=", self("-", x, x), real(0.0), t=BOOL)

    def when(self, cond: Atom, then: Steps, made: Sequence[Atom], orelse: Steps, others: Sequence[Atom]) -> list[Atom]:
        """What one of two branches makes."""
        out = tuple(Var("made", a.type) for a in made)
        self.binds.append(Bind(out, If(cond, Block((*then.binds,), (*made,)), Block((*orelse.binds,), (*others,)))))
        return list(out)


def in_fixed_point(bind: Bind) -> list[Bind]:
    """A parallel loop with what it adds to reals at places that only data know taken out of it, in fixed point."""
    op = bind.op
    n = len(op.accs)
    inside = {v for b in all_binds(op.body) for v in b.vars} | {op.index}
    numbers = []
    for r in reductions(op) or ():
        t = op.accs[r.accs[0]].type
        if r.kind == "scatter" and t.elem == REAL and inside.isdisjoint(t.dims):
            numbers.append(r.accs[0])
    if not numbers:
        return [bind]
    out: list[Bind] = []
    for k in numbers:  # before what they read is changed
        one = alone(op, [k])
        if one is None:
            return [bind]
        out += summed(Bind((bind.vars[k],), replace(one, body=written(one.body, 0)), bind.span))
    left = [k for k in range(n) if k not in numbers]
    if left or len(op.body.results) > n:
        results = (*(op.body.results[k] for k in left), *op.body.results[n:])
        accs, inits = tuple(op.accs[k] for k in left), tuple(op.inits[k] for k in left)
        rest = Loop(op.count, op.index, inits, accs, tidy(Block(op.body.binds, results)))
        out.append(Bind(tuple(v for k, v in enumerate(bind.vars) if k not in numbers), rest, bind.span))
    return out


def summed(bind: Bind) -> list[Bind]:
    """A loop that does nothing but add to an array, in fixed point."""
    (v,), (init,) = bind.vars, bind.op.inits
    dims = v.type.dims
    steps = Steps()
    largest, many = Var("largest", REAL), Var("many", INT)
    steps.binds.append(told(bind, (real(0.0), integer(0)), (largest, many), looked))
    p = scale(steps, largest)
    base: Atom = real(LEAST)
    for most, w in reversed(BASES):
        base = steps("select", steps("<", many, integer(most), t=BOOL), real(w), base, hint="base")
    zeros = [steps("zeros", *dims, t=Arr(INT, dims), hint="digits") for _ in range(4)]
    digits = tuple(Var("digits", Arr(INT, dims)) for _ in zeros)
    steps.binds.append(told(bind, tuple(zeros), digits, lambda *how: added(p, base, *how)))
    indices = [Var("i", INT) for _ in dims]
    element = Steps()
    first, second, third, odd = (element("get", d, *indices, t=INT) for d in digits)
    value = element("real", third)
    for digit in (second, first):
        value = element("+", element("real", digit), element("/", value, base))
    value = element("/", element("/", value, base), p)
    infinite = [element("select", element(*test, t=BOOL), real(x), real(0.0)) for test, x in (
        ((">", element("%", odd, integer(NEGATIVE), t=INT), integer(0)), float("inf")),
        ((">=", odd, integer(NEGATIVE)), float("-inf")),
    )]  # fmt: skip
    value = element("+", element("+", value, infinite[0]), infinite[1])  # a NaN where both are there
    block = Block((*element.binds,), (value,))
    return [*steps.binds, adding(v, init, indices, dims, indices, block, bind.span)]


def told(bind: Bind, inits: Sequence[Atom], made: Sequence[Var], put: Put) -> Bind:
    """A loop that adds to an array, with other accumulators, and ``put`` in place of each addition."""
    ((_, op),) = ((b.vars, b.op) for b in renamed(Block((bind,), ())).binds)
    accs = tuple(Var(v.name, v.type) for v in made)
    body, _ = placed(op.body, {op.accs[0]: accs}, put)
    return Bind(tuple(made), Loop(op.count, op.index, tuple(inits), accs, body), bind.span)


def placed(block: Block, states: dict[Atom, tuple[Atom, ...]], put: Put) -> tuple[Block, list[tuple[Atom, ...]]]:
    """A block with what ``states`` has for each state of an array, and what each of its results has become."""
    steps = Steps()
    states = dict(states)

    def of(atoms: Sequence[Atom]) -> list[tuple[Atom, ...]]:
        return [states.get(a, (a,)) for a in atoms]

    for b in block.binds:
        op = b.op
        if states.keys().isdisjoint(reads(b)):
            steps.binds.append(b)
        elif type(op) is Prim:
            states[b.vars[0]] = tuple(put(steps, states[op.args[0]], op.args[1:-1], op.args[-1]))
        else:
            if type(op) is Loop:
                inits = of(op.inits)
                accs = [
                    (a,) if len(z) == 1 else tuple(Var(x.name, type_of(x)) for x in z) for a, z in zip(op.accs, inits)
                ]
                inner = {a: several for a, several in zip(op.accs, accs) if len(several) > 1}
                body, found = placed(op.body, {**states, **inner}, put)
                op = Loop(op.count, op.index, tuple(chain(*inits)), tuple(chain(*accs)), body)
            else:
                (then, found), (orelse, _) = (placed(arm, states, put) for arm in blocks_of(op))
                op = If(op.cond, then, orelse)
            out = [(v,) if len(x) == 1 else tuple(Var("made", type_of(a)) for a in x) for v, x in zip(b.vars, found)]
            states |= {v: several for v, several in zip(b.vars, out) if len(several) > 1}
            steps.binds.append(Bind(tuple(chain(*out)), op, b.span))
    results = of(block.results)
    return Block((*steps.binds,), tuple(chain(*results))), results


def looked(steps: Steps, state: tuple[Atom, ...], subs: Sequence[Atom], x: Atom) -> list[Atom]:
    """The largest term so far, of those that are finite, and how many there are."""
    largest, many = state
    size = steps("select", steps.finite(x), steps("abs", x), real(0.0))
    return [steps("max", largest, size), steps("+", many, integer(1), t=INT)]


def scale(steps: Steps, largest: Var) -> Atom:
    """The power of two that makes the largest term at least a half and less than 1, or the largest that there is."""
    state: list[Atom] = [real(1.0), largest]
    for step in (STEP, 2.0):
        inside = Steps()
        p, x = Var("p", REAL), Var("x", REAL)
        high = real(1.0) if step == 2.0 else real(step)
        down = inside(">=", x, high, t=BOOL)
        more = inside("*", p, real(step))
        up = inside("and", inside("<", x, real(1.0 / step), t=BOOL), inside.finite(more), t=BOOL)
        results = []
        for v in (p, x):
            larger = inside("select", up, more if v is p else inside("*", v, real(step)), v)
            results.append(inside("select", down, inside("*", v, real(1.0 / step)), larger))
        loop = Loop(integer(STEPS), Var("k", INT), tuple(state), (p, x), Block((*inside.binds,), (*results,)))
        state = [Var("p", REAL), Var("x", REAL)]
        steps.binds.append(Bind(tuple(state), loop))
    return state[0]


def added(p: Atom, base: Atom, steps: Steps, state: tuple[Atom, ...], subs: Sequence[Atom], x: Atom) -> list[Atom]:
    """The digits of a term added to theirs; a term that is no number, or infinite, to the last of the four."""
    *digits, odd = state
    then, other = Steps(), Steps()
    rest: Atom = then("*", x, p)
    after: list[Atom] = []
    for d in digits:
        rest = then("*", rest, base)
        whole = then("round", rest)
        rest = then("-", rest, whole)
        some = Steps()
        made = some("add-at", d, *subs, some("int", whole, t=INT), t=type_of(d))
        after += then.when(then("!=", whole, real(0.0), t=BOOL), some, [made], Steps(), [d])
    up = other("select", other("<", x, real(0.0), t=BOOL), integer(0), integer(1), t=INT)
    down = other("select", other(">", x, real(0.0), t=BOOL), integer(0), integer(NEGATIVE), t=INT)
    odder = other("add-at", odd, *subs, other("+", up, down, t=INT), t=type_of(odd))
    return steps.when(steps.finite(x), then, [*after, odd], other, [*digits, odder])
