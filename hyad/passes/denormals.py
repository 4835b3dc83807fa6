"""Adjoints that are exponentials, most of them almost nothing, added up as multiples of a power of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..core import (
    INT,
    REAL,
    Arr,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Op,
    Prim,
    Program,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    substitute,
    with_blocks,
    with_body,
)
from ..program.loops import loops_of
from ..program.rebuild import rebuild

SCALE = 2.0**64  # from a denormal number to a normal one takes 2^52
FEW = 16  # iterations for which it is not worth to go over the sums once more


def denormals(program: Program) -> Program:
    """Multiplies by 2^64 the exponentials that a loop's adjoints are made of, and divides what it adds up by as much.

    ``(loop n (fn [i a] (let [t (exp (- (* x x)))] (loop m (fn [j a] (add-at a j (* t (get v i j)))) a))) (zeros m))``
    adds up ``(* (* 2^64 t) (get v i j))``; and then ``(map (fn [s] (* 2^-64 s)) a)``.

    Design decision: of a hundred weights of a mixture four are denormal, and many processors take a hundred cycles to
    multiply one: the gradient of a large mixture takes six times as long for them. A power of two rounds nothing, so
    each sum is what it was, to the bit unless a product was denormal, and then nearer to the truth; a term may be up to
    2^960 before it is infinite. Exponentials of squares, which are almost nothing soon; where all that comes of them is
    added up, by products, in loops inside; in double precision, for a float has no such room.
    """
    if not any(any(map(exponential, loop.body.binds)) for loop in loops_of(program)):
        return program
    zeros = {b.vars[0] for b in all_binds(program.body) if type(b.op) is Prim and b.op.name == "zeros"}
    body = scaled(program.body, zeros)
    return program if body is program.body else rebuild(with_body(program, body))


def exponential(x: Bind) -> bool:
    return type(x.op) is Prim and x.op.name == "exp"


def scaled(block: Block, zeros: set[Var]) -> Block:
    """A block with such loops, and those in it; itself where there are none."""
    out: list[Bind] = []
    for x in block.binds:
        made = in_loop(x, zeros)
        if made is None:
            inner = [scaled(r, zeros) for r in blocks_of(x.op)]
            same = all(r is s for r, s in zip(inner, blocks_of(x.op)))
            made = [x if same else Bind(x.vars, with_blocks(x.op, inner), x.span)]
        out += made
    same = len(out) == len(block.binds) and all(x is y for x, y in zip(out, block.binds))
    return block if same else Block(tuple(out), block.results)


def in_loop(x: Bind, zeros: set[Var]) -> list[Bind] | None:
    """A loop whose weights are multiplied, and what divides its sums; None where it has no such weights."""
    op = x.op
    if type(op) is not Loop or op.snapshots is not None or type(op.count) is Const and op.count.value <= FEW:
        return None
    if not any(map(exponential, all_binds(op.body))):
        return None
    follow = followers(op.body)
    for weight in weights(op.body, follow):
        sums = Flow(op, reached(follow, [weight]), weight, zeros).sums()
        if sums:
            raw = {k: Var(x.vars[k].name, x.vars[k].type, x.vars[k].span) for k in sums}
            vars_ = tuple(raw.get(k, v) for k, v in enumerate(x.vars))
            loop = Bind(vars_, replace(op, body=multiplied(op.body, weight)), x.span)
            return [loop, *(divided(raw[k], x.vars[k]) for k in sorted(sums))]
    return None


def weights(block: Block, follow: dict[Atom, list[Var]]) -> Iterator[Var]:
    """The numbers that are exponentials of squares, times others, or sums of such, and that loops inside read."""
    known: set[Atom] = set()  # and the arrays of such

    def visit(block: Block) -> Iterator[Var]:
        for k, x in enumerate(block.binds):
            op = x.op
            if type(op) is Prim and op.args:
                either = op.name in ("neg", "*") and any(a in known for a in op.args)
                both = op.name in ("+", "-") and all(a in known for a in op.args)
                first = op.name in ("get", "/") and op.args[0] in known
                if either or both or first or op.name == "exp" and op.args[0] in curved:
                    known.add(x.vars[0])
                    if x.vars[0].type == REAL and any(inside(x.vars[0], y) for y in block.binds[k + 1 :]):
                        yield x.vars[0]
            else:
                for r in blocks_of(op):
                    yield from visit(r)
                if type(op) is Loop:
                    n = len(op.accs)
                    known.update(v for v, r in zip(x.vars[n:], op.body.results[n:]) if r in known)

    curved = reached(follow, [x.vars[0] for x in all_binds(block) if square(x)])
    return visit(block)


def square(x: Bind) -> bool:
    return type(x.op) is Prim and x.op.name == "*" and x.op.args[0] is x.op.args[1]


def inside(v: Var, x: Bind) -> bool:
    """Whether a loop reads a number in its iterations."""
    return type(x.op) is Loop and v in free_vars(x.op.body)


def multiplied(block: Block, weight: Var) -> Block:
    """A block in which all that reads a number reads its multiple."""
    for k, x in enumerate(block.binds):
        if weight in x.vars:
            more = Var(weight.name, REAL, weight.span, weight.given, weight.soft)
            rest = substitute(Block(block.binds[k + 1 :], block.results), {weight: more})
            multiple = Bind((more,), Prim("*", (Const(SCALE, REAL), weight)), x.span, x.soft)
            return Block((*block.binds[: k + 1], multiple, *rest.binds), rest.results)
    binds = []
    for x in block.binds:
        inner = [multiplied(r, weight) for r in blocks_of(x.op)]
        binds.append(Bind(x.vars, with_blocks(x.op, inner), x.span, x.soft) if inner else x)
    return Block(tuple(binds), block.results)


def divided(raw: Var, final: Var) -> Bind:
    """A sum, or an array of sums, over the scale."""
    dims = final.type.dims if isinstance(final.type, Arr) else ()
    indices = [Var("j", INT) for _ in dims]
    x, y = Var(final.name, REAL), final if not dims else Var(final.name, REAL)
    less = Bind((y,), Prim("*", (Const(1.0 / SCALE, REAL), x if dims else raw)))
    binds: tuple[Bind, ...] = (Bind((x,), Prim("get", (raw, *indices))), less) if dims else (less,)
    for k in range(len(dims) - 1, -1, -1):
        out = final if k == 0 else Var(final.name, Arr(REAL, dims[k:]))
        binds = (Bind((out,), Loop(dims[k], indices[k], (), (), Block(binds, binds[-1].vars))),)
    (made,) = binds
    return made


class Flow:
    """What becomes of a number in a loop: whether it is added up, and nothing else.

    ``kind``: what depends on the number is proportional to it (-1), or a state of the loop's accumulator k, to which
    only such numbers are added."""

    def __init__(self, op: Loop, depends: set[Atom], weight: Var, zeros: set[Var]) -> None:
        self.op, self.depends, self.zeros = op, depends, zeros
        self.kind: dict[Atom, int] = {weight: -1}

    def sums(self) -> set[int] | None:
        """The accumulators that the number is added to, if it goes nowhere else; they start at zero, and are not as
        large as there are iterations, or to divide them would be as much again."""
        op, n = self.op, len(self.op.accs)
        found = {k for k, r in enumerate(op.body.results) if r in self.depends}
        if any(k >= n or not self.zero(op.inits[k]) or not small(op.accs[k], op.count) for k in found):
            return None
        self.kind.update((op.accs[k], k) for k in found)
        if any(a in self.depends for k, a in enumerate(op.accs) if k not in found):
            return None
        if not self.block(op.body):
            return None
        return found if all(self.kind.get(op.body.results[k]) == k for k in found) else None

    def zero(self, a: Atom) -> bool:
        return a in self.zeros or type(a) is Const and a.value == 0

    def block(self, block: Block) -> bool:
        return all(self.bind(x) for x in block.binds)

    def bind(self, x: Bind) -> bool:
        op = x.op
        if type(op) is Prim:
            return not any(a in self.depends for a in op.args) or self.prim(x, op)
        if type(op) is Loop:
            return self.loop(x, op)
        if type(op) is If:
            return op.cond not in self.depends and self.block(op.then) and self.block(op.orelse) and self.arms(x, op)
        read = {*atoms_of(op), *(v for r in blocks_of(op) for v in free_vars(r))}
        return not any(a in self.depends for a in read)

    def prim(self, x: Bind, op: Prim) -> bool:
        """Whether an operation leaves it at that: a product with what does not depend on the number, a sum of such, an
        element or a sum of an array of such."""
        name, args, last = op.name, op.args, len(op.args) - 1
        given = {k for k, a in enumerate(args) if a in self.depends}
        kinds = [self.kind.get(a) for a in args]
        if any(kinds[k] is None for k in given):
            return False
        states = {k for k in given if kinds[k] != -1}
        rest = all(k in given or self.zero(a) for k, a in enumerate(args))
        if name in ("add-at", "update"):
            good = last in given and given <= {0, last} and (0 in given or self.zero(args[0]))
            good = good and states <= {0} and (not states or name == "add-at")
        elif name in ("+", "-"):
            good = rest and len(states) < 2 and (name == "+" or states <= {0})
        elif name == "select":
            good = not states and 0 not in given and all(k in given or self.zero(args[k]) for k in (1, 2))
        else:
            once = name == "*" and len(given) == 1 or name in ("get", "/") and given == {0}
            good = not states and (name == "neg" or once)
        if good:
            self.kind[x.vars[0]] = kinds[states.pop()] if states else -1
        return good

    def loop(self, x: Bind, op: Loop) -> bool:
        if op.count in self.depends or op.snapshots is not None and any(v in self.depends for v in x.vars):
            return False
        carried = [k for k, acc in enumerate(op.accs) if acc in self.depends]
        for k in carried:
            kind = self.kind.get(op.inits[k], -1 if self.zero(op.inits[k]) else None)
            if kind is None:
                return False
            self.kind[op.accs[k]] = kind
        if not self.block(op.body):
            return False
        for k, (v, r) in enumerate(zip(x.vars, op.body.results)):
            if v not in self.depends:
                continue
            wanted = self.kind[op.accs[k]] if k in carried else -1
            if self.kind.get(r, -1 if self.zero(r) else None) != wanted:
                return False
            self.kind[v] = wanted
        return True

    def arms(self, x: Bind, op: If) -> bool:
        for v, *ends in zip(x.vars, op.then.results, op.orelse.results):
            if v in self.depends:
                kinds = {self.kind.get(r, -1 if self.zero(r) else None) for r in ends}
                if len(kinds) > 1 or None in kinds:
                    return False
                (self.kind[v],) = kinds
        return True


def small(v: Var, count: Atom) -> bool:
    """Whether a state is a real, or an array of reals with no element for each of so many iterations."""
    return v.type == REAL or isinstance(v.type, Arr) and v.type.elem == REAL and count not in v.type.dims


def followers(block: Block) -> dict[Atom, list[Var]]:
    """What is made of each value in a block at once, states of loops too."""
    found: dict[Atom, list[Var]] = {}
    for x in all_binds(block):
        for a, v in made_of(x):
            found.setdefault(a, []).append(v)
    return found


def made_of(x: Bind) -> Iterator[tuple[Atom, Var]]:
    """What a binding reads, and what it makes of that."""
    op: Op = x.op
    if type(op) is Loop:
        for acc, v, *sources in zip(op.accs, x.vars, op.inits, op.body.results):
            yield acc, v
            yield from ((a, acc) for a in sources)
        yield from zip(op.body.results, x.vars)
        yield from ((op.count, v) for v in x.vars)
    elif type(op) is If:
        for v, *ends in zip(x.vars, op.then.results, op.orelse.results):
            yield from ((a, v) for a in (op.cond, *ends))
    else:
        read = [*atoms_of(op), *(v for r in blocks_of(op) for v in free_vars(r))]
        yield from ((a, v) for a in read for v in x.vars)


def reached(follow: dict[Atom, list[Var]], on: Sequence[Var]) -> set[Atom]:
    """What depends on some numbers."""
    found: set[Atom] = {*on}
    todo: list[Atom] = [*on]
    while todo:
        for v in follow.get(todo.pop(), ()):
            if v not in found:
                found.add(v)
                todo.append(v)
    return found
