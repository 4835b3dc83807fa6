"""Vectors as one row that a block has, or all blocks: few passes over memory for folds that need one another.

What is done with vectors of one length, element by element, is a *run* of loops with scalars between them: the largest
element, the sum of what is made of it, what is divided by that sum. ``run_of`` finds one, ``arranged`` makes of its
loops as few *passes* as there are folds that need one another (``teams.py``). A short vector is one block's, and all of
the passes are one kernel. A long one is read again in each pass, from memory: what costs no more than that to compute
is computed again rather than stored, and two passes become one where ``online`` finds sums of exponentials below the
largest one, as in ``softmax`` and ``logsumexp``::

    m = (max x)  s = (sum (map (fn [a] (exp (- a m))) x))
    =>  (loop n (fn [i m s] (let [m' (max m x_i)] #(m' (+ (* s (exp (- m m'))) (exp (- x_i m'))))) -inf 0.0)

The sum is kept as it is below the largest element so far; so are a thread's, and a block's (the kind "scaled").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core import (
    BOOL,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    most_uses,
    reads,
    same,
    substitute,
)
from ..passes.spread import Reduction, depends, reductions
from ..program.dead import tidy
from .gather import DEAR, long
from .teams import AGAIN, IDENTITY, PIECED, WHOLE, merged, own_reads, parted, row_loop, scalars

ONE = Const(1.0, REAL)


def run_of(binds: Sequence[Bind], made: dict[Var, Op]) -> list[Bind]:
    """The first of some bindings, those that are loops over the elements of vectors of one length, with the scalars
    between and behind them; none where there are not two such loops. What one makes the others read at their own index
    alone. ``made`` says what makes the variables of the block."""
    out: list[Bind] = []
    rows: set[Var] = set()
    loops = 0
    for b in binds:
        op = b.op
        if type(op) is Loop and same(op.count, binds[0].op.count):
            b = over_elements(b, made)
            if b is None or any(v in atoms_of(b.op) or not own_reads(b.op, v) for v in rows):
                break
            rows.update(v for v in b.vars if isinstance(v.type, Arr))
            loops += 1
        elif not loops or any(v in rows for v in reads(b)) or not scalar(b):
            break
        out.append(b)
    return out if loops > 1 else []


def beside(binds: Sequence[Bind], made: dict[Var, Op]) -> list[Bind]:
    """Bindings in which loops over the elements of vectors of one length stand side by side, so that they are a run:
    one that only folds comes, with the scalars that it reads, before what stands between it and the one before it;
    else that one, where it is the first, comes behind. Nothing passes a check, which may be what makes reading safe."""
    out: list[Bind] = []
    loops: list[Bind] = []
    for b in binds:
        alike = []
        if long(b) and over_elements(b, made) is not None:
            alike = [c for c in loops if same(c.op.count, b.op.count)]
            loops.append(b)
        place = out.index(alike[-1]) if alike else len(out)
        between = out[place + 1 :]
        if all(map(scalar, between)) or any(type(c.op) is Check for c in between):
            out.append(b)
            continue
        needed, wanted = [], {*reads(b)}
        for c in reversed(between):
            if any(v in wanted for v in c.vars):
                needed.insert(0, c)
                wanted.update(reads(c))
        if all(map(scalar, needed)) and not any(isinstance(v.type, Arr) for v in b.vars):
            out[place + 1 :] = [*needed, b, *(c for c in between if c not in needed)]
        elif len(alike) == 1 and not any(v in alike[0].vars for c in between for v in reads(c)):
            out[place:] = [*between, alike[0], b]
        else:
            out.append(b)
    return out


def from_nothing(run: Sequence[Bind]) -> list[Bind]:
    """A run in which a fold that starts with what another one gave starts with nothing, and that is put to it behind
    the loop: neither has to wait."""
    out: list[Bind] = []
    late: set[Var] = set()
    for b in run:
        op, more = b.op, []
        if type(op) is Loop:
            inits, vars_ = list(op.inits), list(b.vars)
            for r in reductions(op) or ():
                k = r.accs[0]
                if r.kind in PIECED and inits[k] in late:
                    t, v = op.accs[k].type, vars_[k]
                    vars_[k] = Var(v.name, t, v.span)
                    more.append(Bind((v,), Prim(PIECED[r.kind], (inits[k], vars_[k])), b.span))
                    inits[k] = Const(IDENTITY[r.kind] if t == REAL else WHOLE[r.kind], t)
            b = Bind(tuple(vars_), replace(op, inits=tuple(inits)), b.span) if more else b
        if type(op) is Loop or any(v in late for v in reads(b)):
            late.update(v for c in (b, *more) for v in c.vars)
        out += [b, *more]
    return out


def scalar(bind: Bind) -> bool:
    """Whether a binding makes scalars or looks at an array, without a loop."""
    inner = (c for r in blocks_of(bind.op) for c in all_binds(r))
    return all(type(c.op) in (Prim, If) and scalars(c) for c in (bind, *inner))


def over_elements(bind: Bind, made: dict[Var, Op]) -> Bind | None:
    """A long parallel loop that makes nothing but scalars of each element, and checks nothing; a vector of which it
    changes each element is one that it makes."""
    op = bind.op
    if not long(bind) or not row_loop(bind, op.count) or any(type(b.op) is Check for b in all_binds(op.body)):
        return None
    mine, rest = parted(bind, made)
    return mine if rest is None else None


def arranged(run: Sequence[Bind], wanted: Iterable[Var], near: bool) -> list[Bind]:
    """The loops of a run as few passes, the scalars between them; ``wanted`` is read later. ``near``: what one pass
    makes the next finds near the processor, so that little is worth computing again."""
    binds = merged(run, run[0].op.count, AGAIN if near else DEAR)
    return list(tidy(Block(tuple(binds), tuple(wanted))).binds)


# ------------------------------------------------------------------------------------------ sums of exponentials


def online(binds: Sequence[Bind]) -> list[tuple[Bind, list[Reduction] | None]]:
    """Bindings in which sums of exponentials below a largest element are summed as that is looked for; and what the
    accumulators of such a loop are, None for the others."""
    out: list[tuple[Bind, list[Reduction] | None]] = []
    for b in binds:
        for p, (a, kinds) in enumerate(out):
            if kinds is None:
                both = with_largest(a, [c for c, _ in out[p + 1 :]], b)
                if both is not None:
                    out[p] = both
                    break
        else:
            out.append((b, None))
    return out


def with_largest(a: Bind, between: Sequence[Bind], b: Bind) -> tuple[Bind, list[Reduction]] | None:
    """A loop that looks for the largest element and one that sums ``(* w (exp (- x largest)))`` as one loop."""
    x, y = a.op, b.op
    if type(x) is not Loop or type(y) is not Loop or not same(x.count, y.count) or len(y.accs) != len(y.body.results):
        return None
    kinds = reductions(x) or []
    mine = {v: c.op for c in (a, *between) for v in c.vars}
    read = [v for v in reads(b) if v in mine]
    guarded = [finite(v, mine) or v for v in read]
    found = next((r for r in kinds if r.kind == "max" and [a.vars[r.accs[0]]] == guarded), None)
    sums = [sum_of(y, k) for k in range(len(y.accs))]
    if found is None or None in sums or x.accs[found.accs[0]].type != REAL:
        return None
    (k,), (largest,) = found.accs, read
    acc, made = x.accs[k], {v: c.op for c in x.body.binds for v in c.vars}
    step = made.get(x.body.results[k])
    if type(step) is not Prim or step.name != "max" or acc not in step.args or most_uses(x.body, acc) != 1:
        return None
    (element,) = (z for z in step.args if z is not acc)
    inside = {v: c.op for c in y.body.binds for v in c.vars}
    below = next((c for c in y.body.binds if largest in atoms_of(c.op)), None)
    if below is None or type(below.op) is not Prim or below.op.name != "-" or below.op.args[1] is not largest:
        return None
    if not alike(element, below.op.args[0], made, inside, {x.index: y.index}) or most_uses(y.body, largest) != 1:
        return None
    powers = [c.vars[0] for c in y.body.binds if type(c.op) is Prim and c.op.name == "exp" and below.vars == c.op.args]
    if len(powers) != 1 or most_uses(y.body, below.vars[0]) != 1 or most_uses(y.body, powers[0]) != len(sums):
        return None
    (power,) = powers
    above, low, high, gap, equal, down, factor = (
        Var(name, BOOL if name in ("above", "equal") else REAL)
        for name in ("above", "low", "high", "gap", "equal", "down", "factor")
    )
    more = [
        Bind((above,), Prim(">", (element, acc))),
        Bind((low,), Prim("min", (acc, element))),
        Bind((high,), Prim("max", (acc, element))),
        Bind((gap,), Prim("-", (low, high))),
        Bind((equal,), Prim("=", (element, acc))),  # both may be infinite
        Bind((down,), Prim("select", (equal, Const(0.0, REAL), gap))),
        Bind((factor,), Prim("exp", (down,))),
    ]
    results: list[Atom] = []
    for s, (name, term) in zip(y.accs, sums):
        weight = weight_of(term, power, inside)
        if weight is None or depends(weight, {power}, inside) or guarded != read and (name, weight) != ("+", ONE):
            return None
        was, then, now, here, next_ = (Var(s.name, REAL) for _ in range(5))
        more += [
            Bind((was,), Prim("*", (s, factor))),
            Bind((then,), Prim(name, (was, weight))),
            Bind((now,), Prim("*", (weight, factor))),
            Bind((here,), Prim(name, (s, factor if weight == ONE else now))),
            Bind((next_,), Prim("select", (above, then, here)), b.span),
        ]
        results.append(next_)
    n = len(x.accs)
    body = Block((*y.body.binds, *more), tuple(results))
    body = substitute(tidy(body), {y.index: x.index})
    rows = x.body.results[n:]
    block = Block((*x.body.binds, *body.binds), (*x.body.results[:n], *body.results, *rows))
    loop = Loop(x.count, x.index, (*x.inits, *y.inits), (*x.accs, *y.accs), block)
    together = Reduction("scaled", (k, *range(n, n + len(y.accs))), finite=guarded != read)
    bind = Bind((*a.vars[:n], *b.vars, *a.vars[n:]), loop, b.span)
    return bind, [together if r is found else r for r in kinds]


def finite(var: Var, made: dict) -> Var | None:
    """``m`` where a variable is ``(if (= (- m m) 0.0) m 0.0)``."""
    op = made.get(var)
    if type(op) is not If or op.then.binds or op.orelse.binds or op.orelse.results != (Const(0.0, REAL),):
        return None
    (m,), test = op.then.results, made.get(op.cond)
    if type(test) is not Prim or test.name != "=" or test.args[1] != Const(0.0, REAL):
        return None
    gap = made.get(test.args[0])
    return m if type(gap) is Prim and gap.name == "-" and gap.args == (m, m) else None


def sum_of(op: Loop, k: int) -> tuple[str, Atom] | None:
    """``+`` or ``-`` and the term of a sum from nothing on, each of whose terms is nothing but added."""
    acc, start, result = op.accs[k], op.inits[k], op.body.results[k]
    step = next((b.op for b in op.body.binds if result in b.vars), None)
    if type(step) is not Prim or step.name not in ("+", "-") or acc not in step.args or acc.type != REAL:
        return None
    if not (type(start) is Const and start.value == 0.0) or most_uses(op.body, acc) != 1:
        return None
    if step.name == "-" and step.args[0] is not acc:
        return None
    return step.name, next(a for a in step.args if a is not acc)


def weight_of(term: Atom, power: Var, made: dict) -> Atom | None:
    """What an exponential is multiplied by in a term."""
    if term is power:
        return ONE
    op = made.get(term)
    if type(op) is not Prim or op.name != "*" or power not in op.args:
        return None
    return next((a for a in op.args if a is not power), None)


def alike(a: Atom, b: Atom, made: dict, other: dict, same_as: dict[Var, Var]) -> bool:
    """Whether two values, each of an iteration of a loop, are computed in the same way."""
    if a is b or same_as.get(a) is b or type(a) is Const and a == b:
        return True
    x, y = made.get(a), other.get(b)
    if type(x) is not Prim or type(y) is not Prim or x.name != y.name or len(x.args) != len(y.args):
        return False
    return all(alike(p, q, made, other, same_as) for p, q in zip(x.args, y.args))
