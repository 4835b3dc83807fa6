"""The sums that differentiation makes: their like terms and constants put together, their brackets opened for it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

from ..core import (
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    Prim,
    Program,
    Var,
    all_binds,
    atoms_of,
    blocks_of,
    free_vars,
    substitute,
    type_atoms,
    with_blocks,
    with_body,
)
from ..program.dead import tidy
from ..program.primitives import PRIMITIVES
from ..program.rebuild import rebuild

TERMS = 12  # a sum of more terms is one number
FACTORS = 6  # so is a product of more factors
OPENED = 8  # of brackets that are opened, of more than so many
CONE = 64  # no more operations are looked at for one sum
LINEAR = frozenset({"+", "-", "neg", "*"})

Product = tuple[Atom, ...]  # of numbers, in a fixed order; () is 1


def like_terms(program: Program) -> Program:
    """Combines like terms and constants in a derivative's sums, where that is less work.

    ``d = (- (* x (* 400 x)) (* 200 (- y (* x x))))``, ``(+ (+ (+ 2 d) d) 200)``  =>
    ``(+ (- (* 1200 (* x x)) (* 400 y)) 202)``.

    Design decision: sums of differentiation's own (``Bind.soft``), with what is computed for nothing but them, the
    user's expressions among it; constants are multiplied out, nothing else is. Roundings move, their bound does not: a
    term of a sum is no larger than the sum and the other term together, so that a term whose neighbour has been rounded
    may be taken out of it. A sum of two numbers that are both exact, ``1 - x`` say, has a cancellation that costs
    nothing; it stays one number. So does one in which terms cancel altogether: infinite ones do not. A multiple whose
    opposite is there is that, where only sums read it.
    """
    return put_together(program, partial(Sums, opened=False))


def open_brackets(program: Program) -> Program:
    """Expands products in a derivative's sums where like terms then combine, if that is less work.

    ``(- (* r (- (* r (- (* r dx) (* x dr))) (* (* r x) dr))) (* (* r (* r x)) dr))``, a derivative of r r r x  =>
    ``(- (* (* r r r) dx) (* 3 (* (* r (* r x)) dr)))``.

    Design decision: after ``like_terms``, whose finds are counted as it left them, and where terms meet that were in
    different brackets alone. A sum that is read more than once stays one number. The bound of roundings stays, as it
    does there: each term is no larger than what was rounded beside it before, and a sum of two numbers that may be
    exact stays one.
    """
    return put_together(program, partial(Sums, opened=True))


Made = Callable[[Block, dict[Atom, Prim], dict[Atom, int]], "Sums"]


def put_together(program: Program, sums: Made) -> Program:
    """A program whose blocks have gone through ``sums``, where differentiation has added something up in them."""
    if not any(adds(x) for x in all_binds(program.body)):
        return program
    makers: dict[Atom, Prim] = {}
    counts: dict[Atom, int] = {}
    todo = [program.body]
    while todo:
        block = todo.pop()
        for a in block.results:
            counts[a] = counts.get(a, 0) + 1
        for x in block.binds:
            if type(x.op) is Prim:
                makers[x.vars[0]] = x.op
            for a in (*atoms_of(x.op), *(a for v in x.vars for a in type_atoms(v.type))):
                counts[a] = counts.get(a, 0) + 1
            todo += blocks_of(x.op)
    body = collected(program.body, lambda block: sums(block, makers, counts).run())
    return program if body is program.body else rebuild(with_body(program, body))  # what is equal now is shared


def adds(x: Bind) -> bool:
    return x.soft and x.op.name in ("+", "-")  # type: ignore[union-attr]


def collected(block: Block, run: Callable[[Block], Block]) -> Block:
    """A block and those in it with their sums collected; itself where there is nothing to collect."""
    binds = []
    for x in block.binds:
        regions = blocks_of(x.op)
        made = [collected(r, run) for r in regions]
        same = all(r is s for r, s in zip(made, regions))
        binds.append(x if same else Bind(x.vars, with_blocks(x.op, made), x.span))
    if not all(x is y for x, y in zip(binds, block.binds)):
        block = Block(tuple(binds), block.results)
    return run(block) if any(map(adds, block.binds)) else block


@dataclass(slots=True)
class Term:
    """A coefficient of a product. ``sources``: numbers that are there, each with its own coefficient of it. Shared: a
    change makes another."""

    factor: float
    sources: list[tuple[Atom, float]] = field(default_factory=list)
    opened: bool = False  # whether it came out of a bracket


Sum = dict[Product, Term]


class Sums:
    """One block. ``counts`` says how often each number is read, ``keys`` what is computed here; products of sums are
    ``opened``, or a sum is one factor of them."""

    def __init__(self, block: Block, makers: dict[Atom, Prim], counts: dict[Atom, int], opened: bool) -> None:
        self.block, self.makers, self.counts, self.opened = block, makers, counts, opened
        self.longest = OPENED if opened else FACTORS
        self.order: dict[Atom, int] = {v: k for k, x in enumerate(block.binds) for v in x.vars}
        self.own = {
            x.vars[0]: x for x in block.binds if type(x.op) is Prim and x.op.name in LINEAR and x.vars[0].type == REAL
        }
        self.keys = {key_of(x.op): v for v, x in self.own.items()}  # type: ignore[arg-type]
        self.ranks: dict[Atom, int] = {}
        self.products: dict[Atom, tuple[Product, float]] = {}
        self.done: set[Atom] = set()
        self.new: dict[Atom, list[Bind]] = {}  # in place of a binding
        self.same: dict[Var, Atom] = {}

    def run(self) -> Block:
        for x in reversed(self.block.binds):
            if self.is_sum(x) and x.vars[0] not in self.done:
                self.root(x)
        block = self.block
        if self.new or self.same:
            binds = [y for x in block.binds for y in self.new.get(x.vars[0] if x.vars else None, (x,))]  # type: ignore
            block = tidy(substitute(Block(tuple(binds), block.results), self.same))
        return block if self.opened else Signs(block).run()

    def is_sum(self, x: Bind) -> bool:
        return x.soft and x.vars[0] in self.own and is_linear(x.op)  # type: ignore[arg-type]

    def root(self, x: Bind) -> None:
        """Collect the sum ``x``: with all that is computed for it alone, or with what is read once alone."""
        cone = self.cone(x.vars[0])
        before = sum(cost(self.makers[w]) for w in cone)
        for through in (False,) if self.opened else (True, False):
            forms = Forms(self, cone, x.vars[0], through)
            if forms.merged and x.vars[0] not in forms.whole:
                writer = Writer(self, cone, x)
                result = writer.sum(forms.of(x.vars[0]))
                spare = 1 if self.opened else 0  # a sum of products may be one operation with one of them
                if (writer.cost + spare, writer.additions(writer.kept)) < (before, writer.additions(cone)):
                    return self.replace(x, writer, result)
            if not forms.merged or not forms.shared:
                break
        self.done |= forms.opened()

    def replace(self, x: Bind, writer: Writer, result: Atom) -> None:
        """Take what ``writer`` has made for ``x``."""
        v = x.vars[0]
        dead = writer.cone.difference(writer.kept)
        for w in dead:
            op = self.makers[w]
            if self.keys.get(key_of(op)) is w:
                del self.keys[key_of(op)]
            for a in op.args:
                self.counts[a] -= 1
        for y in writer.binds:
            for a in y.op.args:  # type: ignore[union-attr]
                self.counts[a] = self.counts.get(a, 0) + 1
        if writer.binds and writer.binds[-1].vars[0] is result:
            last = writer.binds.pop()
            self.new[v] = [*writer.binds, Bind(x.vars, last.op, x.span, True)]
            self.keys[key_of(last.op)] = v  # type: ignore[arg-type]
        else:
            self.same[v] = result
            self.counts[result] = self.counts.get(result, 0) + self.counts[v]
        self.done |= dead

    def cone(self, v: Var) -> set[Atom]:
        """The sums and products that are computed for ``v`` alone, itself among them; not what a product has a sum as a
        factor for, unless it is opened."""
        found: set[Atom] = set()
        readers: dict[Atom, int] = {}
        terms: set[Atom] = {v}  # what a sum is made of
        heap = [(-self.order[v], v)]
        while heap and len(found) < CONE:
            _, w = heapq.heappop(heap)
            op = self.makers[w]
            if w is not v and (readers[w] < self.counts[w] or op.name in ("+", "-") and w not in terms):
                continue
            found.add(w)
            for a in op.args:
                if a in self.own and a not in self.new and a not in self.same:
                    if a not in readers:
                        heapq.heappush(heap, (-self.order[a], a))  # type: ignore[arg-type]
                    readers[a] = readers.get(a, 0) + 1
                    if w in terms and (self.opened or is_linear(op)):
                        terms.add(a)
        return found

    def product(self, a: Atom) -> tuple[Product, float]:
        """A number that stays as a product, and the coefficient of that."""
        found = self.products.get(a)
        if found is None:
            found, op = ((a,), 1.0), self.makers.get(a)
            if op is not None and op.name == "neg":
                key, factor = self.product(op.args[0])
                found = key, -factor
            elif op is not None and op.name == "*" and type(op.args[0]) is Const:
                key, factor = self.product(op.args[1])
                found = key, factor * op.args[0].value
            elif op is not None and op.name == "*":
                (one, c), (two, d) = map(self.product, op.args)
                if len(one) + len(two) <= self.longest:
                    found = self.times(one, two), c * d
            if not found[1] or not math.isfinite(found[1]):
                found = (a,), 1.0
            self.products[a] = found
        return found

    def times(self, one: Product, two: Product) -> Product:
        """The factors in the order in which they were first seen."""
        ranks = self.ranks
        return tuple(sorted((*one, *two), key=lambda a: ranks.setdefault(a, len(ranks))))


DEAR = 10  # a primitive that costs so much, in additions, rounds its result


def exact(makers: Mapping[Atom, Prim], a: Atom) -> bool:
    """Whether a number may be one that no rounding has touched."""
    op = makers.get(a)
    while op is not None:
        if op.name == "neg":
            a = op.args[0]
        elif op.name == "*" and type(op.args[0]) is Const and is_power(op.args[0].value):
            a = op.args[1]
        else:
            row = PRIMITIVES.get(op.name)
            return row is None or op.name not in ("+", "-", "*", "/", "sqrt") and row.cost < DEAR
        op = makers.get(a)
    return True


class Signs:
    """A block in which a multiple is not computed beside its opposite where only sums read it, and products that only
    sums read: ``p = (* 2 x)``, ``q = (* -2 x)``, ``(+ (* q y) z)``  =>  ``(- z (* p y))``. To the last bit, up to the
    sign of a zero."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.readers: dict[Atom, list[Bind | None]] = {}  # None: what is no number

    def run(self) -> Block:
        binds: list[Bind] = []
        there: dict[tuple[float, Atom], Var] = {}
        turned: dict[Atom, Atom] = {}  # by a number its opposite, which is computed in its place
        for x in self.block.binds:
            op = x.op
            if type(op) is not Prim:
                binds.append(x)
                continue
            v = x.vars[0]
            if op.name == "*" and type(op.args[0]) is Const and v.type == REAL:
                c, a = op.args[0].value, op.args[1]
                other = there.get((-c, a))
                if other is not None and a not in turned and self.turns(v):
                    turned[v] = other
                    continue
                there.setdefault((c, a), v)
            binds.extend([x] if turned.keys().isdisjoint(op.args) else self.read(x, op, turned))
        return Block(tuple(binds), self.block.results) if turned else self.block

    def read(self, x: Bind, op: Prim, turned: dict[Atom, Atom]) -> list[Bind]:
        """A product or a sum of such numbers."""
        a, b = op.args
        one, two = (turned.get(y, y) for y in op.args)
        if op.name == "*":
            if one is a or two is b:
                turned[x.vars[0]] = x.vars[0]
            made = Prim("*", (one, two))
        elif op.name == "-":
            made = Prim("+", (a, two))
        elif a in turned and b in turned:
            total = Var(x.vars[0].name, REAL, x.span)
            return [Bind((total,), Prim("+", (one, two)), x.span, x.soft), replace(x, op=Prim("neg", (total,)))]
        else:
            made = Prim("-", (a, two) if b in turned else (b, one))
        return [replace(x, op=made)]

    def turns(self, v: Var, depth: int = 0) -> bool:
        """Whether all that reads a number can read its opposite."""
        if not self.readers:
            self.find()
        return depth < 4 and all(x is not None and self.takes(x, x.op, v, depth) for x in self.readers.get(v, ()))  # type: ignore

    def takes(self, x: Bind, op: Prim, v: Var, depth: int) -> bool:
        if op.name == "*":
            return op.args[0] is not op.args[1] and self.turns(x.vars[0], depth + 1)
        return op.name == "+" or op.name == "-" and op.args[0] is not v

    def find(self) -> None:
        self.readers = {a: [None] for a in self.block.results}
        for x in self.block.binds:
            number = x if type(x.op) is Prim and x.vars[0].type == REAL else None
            for a in (*atoms_of(x.op), *(v for region in blocks_of(x.op) for v in free_vars(region))):
                self.readers.setdefault(a, []).append(number)


def is_linear(op: Prim) -> bool:
    return op.name != "*" or type(op.args[0]) is Const


def is_power(x: float) -> bool:
    return abs(math.frexp(x)[0]) == 0.5


def cost(op: Prim) -> int:
    return PRIMITIVES[op.name].cost


def key_of(op: Prim) -> tuple:
    """Equal for sums and products of the same numbers."""
    args = [(repr(a.value),) if type(a) is Const else a for a in op.args]
    if op.name in ("+", "*") and hash(args[0]) > hash(args[1]):
        args.reverse()
    return op.name, *args


class Forms:
    """The numbers of a cone as sums of products. ``whole``: those that are taken for one number all the same, among
    them the sums that are read more than once, unless they are to be looked ``through``."""

    def __init__(self, sums: Sums, cone: set[Atom], root: Var, through: bool) -> None:
        self.sums, self.cone, self.root, self.through = sums, cone, root, through
        self.forms: dict[Atom, Sum] = {}
        self.whole: set[Atom] = set()
        self.merged = self.shared = False
        for w in sorted(cone, key=sums.order.__getitem__):
            self.add(w)

    def of(self, a: Atom) -> Sum:
        found = self.forms.get(a)
        if found is None and type(a) is Const:
            return {(): Term(float(a.value))}
        if found is None:
            key, factor = ((a,), 1.0) if a in self.cone else self.sums.product(a)
            found = {key: Term(factor, [(a, factor)])}
        return found

    def add(self, v: Atom) -> None:
        op = self.sums.makers[v]
        made = self.form(op, v)
        if made is None or len(made) > TERMS or not all(math.isfinite(t.factor) and t.factor for t in made.values()):
            self.whole.add(v)
            return
        shared = len(made) > 1 and v is not self.root and self.sums.counts[v] > 1
        self.shared |= shared
        if shared and not self.through:
            self.whole.add(v)
        else:
            self.forms[v] = made

    def form(self, op: Prim, v: Atom) -> Sum | None:
        if op.name == "*":
            return self.product(op, v)
        if op.name == "neg":
            return scaled(self.of(op.args[0]), -1.0)
        x, y = map(self.of, op.args)
        if x.keys() != y.keys() and all(exact(self.sums.makers, a) for a in op.args):
            return None
        total = dict(x)
        for key, t in scaled(y, 1.0 if op.name == "+" else -1.0).items():
            if key in total:
                s = total[key]
                self.merged |= s.opened or t.opened or not self.sums.opened
                sources = [*dict.fromkeys([*s.sources, *t.sources])]
                total[key] = Term(s.factor + t.factor, sources, s.opened or t.opened)
            else:
                total[key] = t
        return total

    def product(self, op: Prim, v: Atom) -> Sum | None:
        a, b = op.args
        x, y = self.of(a), self.of(b)
        if () in x and len(x) == 1:
            made = scaled(y, x[()].factor)
            if len(made) == 1:
                ((key, t),) = made.items()
                made = {key: Term(t.factor, [*t.sources, (v, t.factor)], t.opened)}
            return made
        if self.sums.opened and (len(x) > 1) != (len(y) > 1):
            return self.opened_product(x, y)
        one, two = self.single(a, x), self.single(b, y)
        key = self.sums.times(one[0], two[0])
        if len(key) > self.sums.longest:
            return None
        factor = one[1] * two[1]
        return {key: Term(factor, [(v, factor)])}

    def opened_product(self, x: Sum, y: Sum) -> Sum | None:
        """A sum by one product, term by term."""
        made: Sum = {}
        for one, s in x.items():
            for two, t in y.items():
                key = self.sums.times(one, two)
                if len(key) > self.sums.longest:
                    return None
                made[key] = Term(s.factor * t.factor, opened=True)
        return made

    def single(self, a: Atom, x: Sum) -> tuple[Product, float]:
        """A factor as a product; a sum is one number."""
        if len(x) == 1:
            ((key, t),) = x.items()
            return key, t.factor
        return (a,), 1.0

    def opened(self) -> set[Atom]:
        """The sums that the root was looked at as the sum of."""
        found: set[Atom] = set()
        todo: list[Atom] = [self.root]
        while todo:
            w = todo.pop()
            if w not in found and w in self.cone and (w is self.root or w not in self.whole):
                found.add(w)
                todo += [a for a in self.sums.makers[w].args if self.sums.makers[w].name != "*" or len(self.of(w)) > 1]
        return found


def scaled(x: Sum, by: float) -> Sum:
    return x if by == 1 else {key: Term(by * t.factor, t.sources, t.opened) for key, t in x.items()}


class Writer:
    """Writes a sum of products in place of ``x``: ``binds`` is what is new, ``kept`` what stays of the cone, ``cost``
    what both take."""

    def __init__(self, sums: Sums, cone: set[Atom], x: Bind) -> None:
        self.sums, self.cone, self.place = sums, cone, x
        self.binds: list[Bind] = []
        self.made: dict[tuple, Atom] = {}
        self.kept: set[Atom] = set()
        self.cost = 0

    def there(self, op: Prim) -> Atom | None:
        """What computes this already, and would go on doing so."""
        key = key_of(op)
        v = self.made.get(key)
        if v is None:
            v = self.sums.keys.get(key)
            v = None if v in self.cone and v not in self.kept else v
        return v

    def emit(self, name: str, *args: Atom) -> Atom:
        op, order = Prim(name, args), self.sums.order
        found = self.there(op)
        if found is None:
            self.cost += cost(op)
        elif found not in order or order[found] < order[self.place.vars[0]]:
            return found  # what is computed after this will be shared with it
        v = Var(self.place.vars[0].name, REAL, self.place.span)
        self.binds.append(Bind((v,), op, self.place.span, True))
        self.made[key_of(op)] = v
        return v

    def needed(self, atoms: Product) -> set[Atom]:
        """What of the cone has to be kept beside what is, for some numbers to be there."""
        found: set[Atom] = set()
        todo = [*atoms]
        while todo:
            w = todo.pop()
            if w in self.cone and w not in self.kept and w not in found:
                found.add(w)
                todo += self.sums.makers[w].args
        return found

    def price(self, atoms: Product) -> int:
        return sum(cost(self.sums.makers[w]) for w in self.needed(atoms))

    def keep(self, a: Atom) -> Atom:
        self.cost += self.price((a,))
        self.kept |= self.needed((a,))
        return a

    def additions(self, kept: set[Atom]) -> int:
        """How many additions there are: a factor of two in their place may meet a half."""
        return sum(op.name != "*" for op in (*(self.sums.makers[w] for w in kept), *(x.op for x in self.binds)))

    def sum(self, total: Sum) -> Atom:
        """The sum, each term where it first stood: ``-x + y`` is ``y - x``."""
        terms = self.terms(total)
        if len(terms) > 1 and terms[0][0] < 0 < terms[1][0]:
            terms[:2] = terms[1::-1]
        c, k, a = terms[0]
        found = self.times(c * k, a)
        for c, k, a in terms[1:]:
            found = self.emit("+" if c > 0 else "-", found, self.times(k, a))
        return found

    def terms(self, total: Sum) -> list[tuple[float, float, Atom]]:
        return [self.term(key, t) for key, t in total.items()]

    def times(self, k: float, a: Atom) -> Atom:
        if abs(k) == 1:
            return a if k > 0 else Const(-a.value, REAL) if type(a) is Const else self.emit("neg", a)
        return self.emit("*", Const(k, REAL, is_power(k)), a)

    def term(self, key: Product, t: Term) -> tuple[float, float, Atom]:
        """A term as a sign, a positive factor (a negative one where that is at hand) and a number."""
        if not key:
            return math.copysign(1.0, t.factor), 1.0, Const(abs(t.factor), REAL)
        ways: list[tuple[tuple[int, bool], Atom | None, float]] = []
        for a, own in t.sources:
            k = t.factor / own
            price = self.price((a,))
            if abs(k) != 1 and not any(self.there(Prim("*", (Const(c, REAL), a))) for c in (k, -k)):
                price += 1
            ways.append(((price, k * own != t.factor), a, k))
        ways.append(((self.price(key) + len(key) - 1 + (abs(t.factor) != 1), True), None, t.factor))
        _, found, k = min(ways, key=itemgetter(0))
        a = self.keep(key[0] if found is None else found)
        for b in key[1:] if found is None else ():
            a = self.emit("*", a, self.keep(b))
        sign = math.copysign(1.0, k)
        k = abs(k)
        if k != 1 and self.there(Prim("*", (Const(-k, REAL), a))) is not None:
            return -sign, -k, a
        return sign, k, a
