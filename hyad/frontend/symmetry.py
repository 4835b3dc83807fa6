"""Whether a matrix is symmetric by the way it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core import BOOL, FALSE, REAL, TRUE, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Var, rank_of, type_of
from ..program.builder import Builder
from ..program.primitives import PRIMITIVES
from ..program.values import NIL, Spans, Value
from .arguments import arity, operand

if TYPE_CHECKING:
    from .specialise import Specialiser

STEPS = 5000  # a proof that takes more is not found
COMMUTATIVE = frozenset({"+", "*", "min", "max", "=", "!=", "and", "or"})
EVEN = frozenset({"abs", "square", "cos", "cosh"})  # of -x what they are of x
TURNED = {">": "<", ">=": "<="}


def is_symmetric(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(symmetric? a)``: whether the matrix a is known to be symmetric, by the program that made it."""
    arity(sp, "symmetric?", args, 1)
    return Const(symmetric(sp.b, operand(sp, "symmetric?", args[0], spans[0])), BOOL)


def symmetric(b: Builder, a: Atom) -> bool:
    """Whether element i, j of a matrix is computed as element j, i is.

    Of ``(build [n n] (fn [i j] (exp (- (abs (- (get x i) (get x j)))))))`` the one is the exponential of ``-|x_i -
    x_j|`` and the other that of ``-|x_j - x_i|``, which is the same.

    Design decision: an element is written down as an expression of its two indices, through whatever arrays it is read
    from, and then again with the two exchanged. Products, sums, multiples and functions of symmetric matrices, the
    product of a matrix with its transpose, and what is added to the diagonal need no rules of their own.
    """
    t = type_of(a)
    if type(a) is not Var or not isinstance(t, Arr) or t.rank != 2 or not b.same_int(*t.dims):
        return False
    written = Expressions(b)
    i, j = written.term("row"), written.term("column")
    try:
        return written.element(a, [i, j], None) == written.element(a, [j, i], None)
    except TooLong:
        return False


def note_result(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(note-result f x ... how)``: x, which is what a function of the prelude gives; ``how`` is kept of it."""
    f, x, *others, how = args
    atoms = [operand(sp, "note-result", a, None) for a in (x, *others)]
    sp.notes[(f.function, *map(sp.b.key, atoms))] = sp.b.scopes[-1], how  # type: ignore[union-attr]
    return atoms[0]


def noted_result(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(noted-result f x ...)``: what is kept of x, or nil; nothing in another loop, which may run more often."""
    f, *atoms = args
    if any(not isinstance(a, (Const, Var)) for a in atoms):
        return NIL
    scope, how = sp.notes.get((f.function, *map(sp.b.key, atoms)), (None, NIL))  # type: ignore[union-attr,arg-type]
    if scope not in sp.b.scopes:
        return NIL
    inner = sp.b.scopes[sp.b.scopes.index(scope) + 1 :]
    return how if not any(s.repeats for s in inner) else NIL


def is_hoisted(sp: Specialiser, args: list[Value], spans: Spans, var: Var | None) -> Value:
    """``(hoisted? a)``: whether a is made outside of the innermost loop here, once for all its iterations."""
    arity(sp, "hoisted?", args, 1)
    a = operand(sp, "hoisted?", args[0], spans[0])
    for scope in reversed(sp.b.scopes):
        if a in scope.vars:
            return FALSE
        if scope.repeats:
            return TRUE
    return FALSE


class TooLong(Exception):
    """A proof takes too many steps."""


class Inside:
    """A block that is looked into: the operations that bind its variables; the expressions that are known of others:
    the index of the loop that it is the body of, what has been found."""

    def __init__(self, block: Block, around: Inside | None, known: dict[Var, int]) -> None:
        self.binds = {v: x for x in block.binds for v in x.vars}
        self.around, self.known = around, known
        self.place = (*(() if around is None else around.place), *known.values())  # what tells its iterations apart


class Expressions:
    """Expressions as numbers: equal ones have one number, also where the operands of a commutative operation stand the
    other way round, or signs cancel."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.numbers: dict[tuple, int] = {}
        self.terms: list[tuple] = []
        self.steps = self.folds = 0

    def term(self, *term: Any) -> int:
        found = self.numbers.get(term)
        if found is None:
            found = self.numbers[term] = len(self.terms)
            self.terms.append(term)
        return found

    def unsigned(self, x: int) -> tuple[int, bool]:
        """An expression without its sign, and whether that is negative."""
        return (self.terms[x][1], True) if self.terms[x][0] == "neg" else (x, False)

    def signed(self, x: int, negative: bool) -> int:
        x, minus = self.unsigned(x)
        return self.term("neg", x) if negative != minus else x

    def applied(self, name: str, args: Sequence[int]) -> int:
        """A primitive of expressions."""
        if name == "neg":
            return self.signed(args[0], True)
        if name == "-":
            x, y = args
            return self.signed(self.term("-", min(x, y), max(x, y)), y < x)  # x - y is -(y - x)
        if name == "**" and self.even(args[1]):
            return self.term(name, self.unsigned(args[0])[0], args[1])
        if name in EVEN:
            return self.term(name, self.unsigned(args[0])[0])
        if name in ("*", "/"):
            (x, one), (y, other) = map(self.unsigned, args)
            x, y = (min(x, y), max(x, y)) if name == "*" else (x, y)
            return self.signed(self.term(name, x, y), one != other)
        if name in TURNED:
            name, args = TURNED[name], args[::-1]
        return self.term(name, *(sorted(args) if name in COMMUTATIVE else args))

    def even(self, x: int) -> bool:
        """Whether an exponent is a known even number."""
        kind, *given = self.terms[x]
        return kind == "constant" and float(given[1]) % 2 == 0

    def found(self, v: Var, inside: Inside | None) -> tuple[Bind | None, Inside | None]:
        """The operation that binds a variable, and the block where that stands."""
        while inside is not None:
            if v in inside.binds:
                return inside.binds[v], inside
            inside = inside.around
        op = self.b.definitions.get(v)
        if op is not None:
            return Bind((v,), op), None
        for scope in reversed(self.b.scopes):
            if v in scope.vars:
                return next((x for x in reversed(scope.binds) if v in x.vars), None), None
        return None, None

    def value(self, a: Atom, inside: Inside | None) -> int:
        """The expression of a number."""
        if type(a) is Const:
            return self.term("constant", a.type, repr(a.value))
        at = inside
        while at is not None:
            if a in at.known:
                return at.known[a]
            at = at.around
        bind, home = self.found(a, inside)
        if home is None:
            return self.term("given", a)
        made = home.known[a] = self.element(a, (), inside)
        return made

    def element(self, a: Atom, at: Sequence[int], inside: Inside | None) -> int:
        """The expression of an element, or of a number where there are no subscripts."""
        self.steps += 1
        if self.steps > STEPS:
            raise TooLong
        if type(a) is Const:
            return self.value(a, inside)
        bind, home = self.found(a, inside)
        made = None if bind is None else self.made(bind, bind.vars.index(a), at, home)
        if made is None:  # whatever that is: the same wherever the same iterations are meant
            return self.term("given", a, () if home is None else home.place, *at)
        return made

    def made(self, bind: Bind, k: int, at: Sequence[int], inside: Inside | None) -> int | None:
        """What an operation says of an element of its result ``k``; None where that is nothing."""
        op = bind.op
        if type(op) is Prim:
            if op.name == "get":
                return self.element(op.args[0], [*(self.value(x, inside) for x in op.args[1:]), *at], inside)
            if op.name == "stop" or op.name in self.b.rules:
                return self.element(op.args[0], at, inside)
            if op.name == "zeros":
                return self.term("constant", REAL, "0.0")
            if op.name == "array" and at and all(x is op.args[0] for x in op.args):
                return self.element(op.args[0], at[1:], inside)
            if not at and (op.name in PRIMITIVES or op.name == "select"):
                return self.applied(op.name, [self.value(x, inside) for x in op.args])
        elif type(op) is If:
            sides = [(arm.results[k], Inside(arm, inside, {})) for arm in (op.then, op.orelse)]
            arms = [self.element(r, at, arm) if at else self.value(r, arm) for r, arm in sides]
            return self.term("if", self.value(op.cond, inside), *arms)
        elif type(op) is Loop and k >= len(op.accs) and at and not op.accs:
            body = Inside(op.body, inside, {op.index: at[0]})
            return self.element(op.body.results[k], at[1:], body)
        elif type(op) is Loop and k < len(op.accs) and not at and not any(map(rank_of, op.accs)):
            self.folds += 1  # those around: each has states of its own
            known = {v: self.term("state", self.folds, m) for m, v in enumerate((op.index, *op.accs))}
            body = Inside(op.body, inside, known)
            steps = [self.value(r, body) for r in op.body.results[: len(op.accs)]]
            starts = [self.value(z, inside) for z in op.inits]
            made = self.term("fold", self.folds, k, self.value(op.count, inside), *starts, *steps)
            self.folds -= 1
            return made
        return None
