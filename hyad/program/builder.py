"""The builder: every typed program is made through it, one operation at a time.

It types each operation, folds constants, applies ``rules.hy``, shares common subexpressions (hash-consing, scoped: a
value computed in an enclosing block is reused, one from a branch never escapes it), keeps integers in affine normal
form and proves index bounds with them. So every pass that rebuilds a program gets these for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import (
    BOOL,
    INT,
    REAL,
    ROW,
    TRUE,
    Apply,
    Arm,
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
    Scalar,
    Type,
    Var,
    While,
    blocks_of,
    free_vars,
    integer,
    is_one,
    kinds_of,
    rank_of,
    real,
    substitute,
    type_of,
)
from ..errors import HyadError, ModelTypeError, Span
from .affine import Affine, affine_add, affine_key
from .alike import Alike, structure
from .bounds import Bounds, Scope
from .dead import has_checks, tidy
from .journal import FIRED, OFF
from .primitives import PRIMITIVES
from .rewrite import compiled, rewrite

QUICK = frozenset("= != < <= > >= and or not + - *".split())  # what may be computed where it is not needed
QUICKLY = 12  # of those, at most
OWN = ("update", "add-at", "undef")  # done in place: each array has memory of its own
COMMUTATIVE = frozenset({"+", "*", "min", "max", "=", "!=", "and", "or"})
#: Even functions and odd ones, to the last bit.
MIRRORED = {
    **dict.fromkeys(("cos", "cosh", "abs"), 1),
    **dict.fromkeys(("sin", "tan", "asin", "atan", "sinh", "tanh", "erf", "cbrt"), -1),
}
INT_MAX = 2**63 - 1
INTEGERS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "neg": int.__neg__}  # folded without rounding
SMALL = 64  # up to so many elements an array of known size is kept as single values
FEW = 4  # of so many rows one of two is picked by a condition, not found by its index

#: Builds one iteration from its index, if any, and the accumulators: the next ones, and what is stacked.
Iteration = Callable[..., tuple[Sequence[Atom], Sequence[Atom]]]


class Builder(Bounds):
    """Builds one program. ``plain`` turns rewriting and sharing off: the stages before the optimiser.

    ``span`` is the place that new bindings are said to come from; passes set it as they go. ``soft``: new operations
    are differentiation's own (see ``Bind``).
    """

    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain
        self.off, self.journal = OFF.get(), FIRED.get()
        self.rewrites = compiled(self.off, self.journal is not None)
        self.shares, self.hoists = "sharing" not in self.off, "hoisting" not in self.off
        self.shares_changes = False  # whether an array that is changed alike twice is one
        self.made: dict[Var, Make] = {}  # data whose constructor is known
        self.span: Span | None = None
        self.soft = False
        self.softly: set[Var] = set()  # the numbers of operations that are differentiation's own
        self.again: set[Var] = set()  # tables of sums that are computed again rather than remembered
        self.typed: dict[tuple, Any] = {}  # overloads found
        self.memo: dict[tuple, Any] = {}  # types and functions that differentiation makes once
        self.ranges: dict[Var, tuple[Var, Affine]] = {}  # arrays of integers: their elements by an index
        self.last: dict[Var, tuple[Var, Atom]] = {}  # stacked states: the one that is left, and how many there are
        self.rules: dict[str, Any] = {}  # by the operation that marks a value which has derivatives of its own

    def fired(self, name: str) -> None:
        """An optimisation has been made here: for who asks."""
        if self.journal is not None:
            self.journal.append((name, self.span))

    # ------------------------------------------------------------------------------------- emission

    def emit(
        self,
        op: Any,
        types: Sequence[Type],
        names: Sequence[str] = (),
        given: bool = False,
        scope: Scope | None = None,
        soft: bool = False,
    ) -> tuple[Var, ...]:
        """Append ``op`` to the open block, or to ``scope`` around it; new variables of ``types``."""
        span = self.span
        if len(types) == 1:
            out: tuple[Var, ...] = (Var(names[0], types[0], span, given) if names else Var("t", types[0], span),)
        else:
            out = tuple(
                Var(names[i] if i < len(names) else "t", t, span, given and i < len(names)) for i, t in enumerate(types)
            )
        scope = scope or self.scopes[-1]
        scope.binds.append(Bind(out, op, span, soft))
        scope.vars.update(out)
        return out

    def home(self, args: Sequence[Atom]) -> Scope:
        """Where an operation on ``args`` is computed."""
        return self.scopes[-1] if self.plain or not self.hoists else self.outermost(args)

    def outermost(self, args: Sequence[Atom]) -> Scope:
        """The outermost scope in which ``args`` can be seen, moving out of loops only: never out of a branch, whose
        code must not run when the branch is not taken."""
        k = len(self.scopes) - 1
        while k > 0:
            scope = self.scopes[k]
            if not scope.repeats or any(a in scope.vars for a in args if type(a) is Var):
                break
            k -= 1
        return self.scopes[k]

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        """Emit into an enclosing scope for a while."""
        k = self.scopes.index(scope)
        inner = self.scopes[k + 1 :]
        del self.scopes[k + 1 :]
        try:
            yield
        finally:
            self.scopes.extend(inner)

    def shared(self, key: tuple | Alike) -> Any:
        found = self.at_hand(key)
        if found is not None and self.journal is not None:
            self.fired("sharing")
        return found

    def at_hand(self, key: tuple | Alike) -> Any:
        """What is shared under a key, if anything; asking is not put on record."""
        if not self.shares:
            return None
        for scope in reversed(self.scopes):
            found = scope.shared.get(key)
            if found is not None:
                return found
        return None

    @contextmanager
    def region(self, scope: Scope | None = None) -> Iterator[Scope]:
        """A nested block under construction (or one taken up again); ``close`` makes the ``Block``."""
        scope = scope or Scope()
        self.scopes.append(scope)
        equal, self.equal = self.equal, dict(self.equal)  # what is checked in a region is known there only
        span = self.span
        try:
            yield scope
        finally:
            self.equal, self.span = equal, span
            self.scopes.pop()

    @contextmanager
    def branch_region(self, cond: Atom, holds: bool) -> Iterator[Scope]:
        """The region of a branch: what its condition says holds there."""
        with self.region() as scope:
            scope.facts.extend(self.facts_of(cond, holds))
            yield scope

    @staticmethod
    def close(scope: Scope, results: Sequence[Atom]) -> Block:
        return Block(tuple(scope.binds), tuple(results))

    def block(self) -> tuple[Bind, ...]:
        """The bindings of the outermost block."""
        return tuple(self.scopes[0].binds)

    # -------------------------------------------------------------------------------------- scalars

    def number(self, value: float, like: Any = REAL, soft: bool = False) -> Const:
        if like == INT and float(value).is_integer():
            return Const(int(value), INT, soft)
        return Const(float(value), REAL, soft)

    def to_real(self, atom: Atom) -> Atom:
        """An ``Int`` (or ``Bool``) as a ``Real``."""
        if type(atom) is Const:
            return atom if atom.type == REAL else Const(float(atom.value), REAL, atom.soft)
        return atom if atom.type == REAL else self.prim("real", atom)

    def reals(self, atom: Atom) -> Atom:
        """Integers, or an array of them, as reals."""
        t = type_of(atom)
        if isinstance(t, Arr) and t.elem == INT:
            return self.elementwise(self.to_real, atom)
        return self.to_real(atom) if t == INT else atom

    def fold(self, name: str, *args: Const) -> Const | None:
        """The constant that a primitive gives on constants; None where it has none (an integer overflow)."""
        row = PRIMITIVES[name]
        wanted, result = row.result(tuple(a.type for a in args))  # type: ignore[misc]
        values = [float(a.value) if w == REAL else a.value for a, w in zip(args, wanted)]
        if result == INT and name in INTEGERS:
            value = INTEGERS[name](*values)
        else:
            with np.errstate(all="ignore"):
                try:
                    value = row.python(*values)
                except (ArithmeticError, ValueError):
                    return None
        soft = all(a.soft for a in args)
        if name == "*" or name == "/":  # a zero that differentiation introduced stays one
            soft = soft or any(a.soft and a.value == 0 for a in (args if name == "*" else args[:1]))
        if result == INT:
            value = int(value)
            return Const(value, INT, soft) if abs(value) <= INT_MAX else None
        if soft and value == 0:
            value = 0  # it has no sign: the rules know it as what adds nothing
        return Const(bool(value) if result == BOOL else float(value), result, soft)

    def key(self, atom: Atom) -> Any:
        if type(atom) is Const:
            soft = atom.soft and atom.type != INT  # the library's integers are subscripts and powers like any others
            return (atom.type, atom.value or repr(atom.value), soft)  # 0.0 and -0.0 differ
        return atom

    def prim(self, name: str, *args: Atom, hint: str | None = None, given: bool = False) -> Atom:
        """One scalar operation; the atom that holds its value."""
        types = tuple([a.type for a in args])
        typed = self.typed.get((name, types), False)
        if typed is False:
            typed = self.typed[name, types] = PRIMITIVES[name].result(types)  # type: ignore[arg-type]
        if typed is None:
            raise HyadError(f"`{name}` does not work on {', '.join(map(str, types))}", self.span)
        wanted, result = typed
        if wanted != types:
            args = tuple(self.to_real(a) if w == REAL else a for a, w in zip(args, wanted))
        scope, key = self.scopes[-1], None
        if not self.plain:
            for a in args:
                if type(a) is not Const:
                    break
            else:
                folded = self.fold(name, *args)  # type: ignore[arg-type]
                if folded is not None:
                    return folded
            if result == INT:
                affine = self.affine_of(name, args)
                if affine is not None:
                    whole = name == "//"  # a quotient without a rest: no division
                    return self.affine_value(affine) if whole else self.affine_atom(affine, name, args, hint, given)
                rest = self.residue(*args) if name == "%" else None
                if rest is not None:
                    return self.prim("%", self.affine_value(rest), args[1])
                known = self.wrapped(*args) if name == "%" else None
                turned = self.unturned(*args) if name == "%" and known is None else None
                if turned is not None:
                    return self.prim("%", self.affine_value(turned), args[1])
                if name in ("max", "min"):
                    with self.inside(self.outermost(args)):  # a size has to hold where no iteration runs, too
                        known = self.chosen(name, args)
                    known = known or self.of_each(name, args)
                if known is not None:
                    return known
            elif result == BOOL:
                known = self.decided(name, args)
                if known is not None:
                    return known
            rewritten = rewrite(name, args, self.definitions, self, wanted[-1], hint, given)
            if rewritten is not None:  # x**0 is the exponent's kind of 1 in the rule, and a real here
                return self.to_real(rewritten) if result == REAL else rewritten
            key = self.prim_key(name, args)
            found = self.shared(key)
            if found is not None:
                if not self.soft and found in self.softly:
                    self.harden(found)
                return found
            if name in MIRRORED and result == REAL:
                mirrored = self.mirrored(name, args[0])
                if mirrored is not None:
                    return mirrored
            if scope.repeats:
                scope = self.home(args)
                if self.journal is not None and scope is not self.scopes[-1]:
                    self.fired("hoisting")
        op, span = Prim(name, args), self.span
        var = Var(hint, result, span, given) if hint else Var("t", result, span)
        soft = self.soft and result is REAL
        if soft:
            self.softly.add(var)
        scope.binds.append(Bind((var,), op, span, soft))
        scope.vars.add(var)
        self.definitions[var] = op
        if key is not None:
            scope.shared[key] = var
            here = scope is self.scopes[-1] or not self.equal  # what is equal here need not be so there
            if result == INT and name in ("%", "max", "min", "//"):
                with self.inside(scope):
                    if name == "%" and self.nonnegative(affine_add(self.affine(args[1]), (1, {}), -1)):
                        self.below(var, args[1])
                    elif name != "%" and here:
                        scope.facts += self.between(var, op)
        return var

    def mirrored(self, name: str, x: Atom) -> Atom | None:
        """An even or odd function of a difference, where that of the opposite one is at hand."""
        op = self.definitions.get(x) if type(x) is Var else None
        if op is None or op.name != "-":
            return None
        opposite = self.at_hand(self.prim_key("-", op.args[::-1]))
        found = self.shared(self.prim_key(name, (opposite,))) if opposite is not None else None
        if found is None:
            return None
        if not self.soft and found in self.softly:
            self.harden(found)
        return found if MIRRORED[name] > 0 else self.prim("-", real(0.0), found)  # 0 where both are equal, not -0

    def harden(self, v: Var) -> None:
        """What differentiation has computed is asked for by the user, too: it stays as it is."""
        self.softly.discard(v)
        for scope in self.scopes:
            if v in scope.vars:
                at = next(k for k, x in enumerate(scope.binds) if v in x.vars)
                scope.binds[at] = replace(scope.binds[at], soft=False)

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        """What is made meanwhile is differentiation's own."""
        before, self.soft = self.soft, True
        try:
            yield
        finally:
            self.soft = before

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """What is made meanwhile is a user's, although differentiation asks for it."""
        before, self.soft = self.soft, False
        try:
            yield
        finally:
            self.soft = before

    def prim_key(self, name: str, args: Sequence[Atom]) -> tuple:
        """Equal for applications that compute the same, with the operands of a commutative one in either order."""
        if len(args) != 2:
            return name, *map(self.key, args)
        a, b = (self.key(x) if type(x) is Const else x for x in args)
        if name == "-" and (minus := self.definitions.get(args[0])) is not None and minus.name == "neg":
            a, name = self.key(minus.args[0]), "-neg"  # -x - y is -y - x, to the last bit
            return (name, b, a) if hash(a) > hash(b) else (name, a, b)
        return (name, b, a) if name in COMMUTATIVE and hash(a) > hash(b) else (name, a, b)

    def remember(self, name: str, args: tuple[Atom, ...], value: Atom) -> None:
        """Say that the open block need not compute ``(name args ...)``: it is ``value``."""
        if not self.plain:
            self.scopes[-1].shared.setdefault(self.prim_key(name, args), value)

    def sum(self, terms: Sequence[Atom]) -> Atom:
        total = terms[0]
        for t in terms[1:]:
            total = self.prim("+", total, t)
        return total

    # --------------------------------------------------------------------------- integers and bounds

    def affine_atom(self, affine: Affine, name: str, args: tuple[Atom, ...], hint: str | None, given: bool) -> Atom:
        """The atom of an affine value, made as ``(name args)`` unless one is at hand."""
        constant, terms = affine
        if not terms and abs(constant) <= INT_MAX:
            return Const(constant, INT)
        if constant == 0 and len(terms) == 1:
            (var, k), *_ = terms.items()
            if k == 1:
                return var
        key = affine_key(affine)
        found = self.shared(key)
        if found is not None:
            return found
        if len(terms) == 1 and all(type(a) is Var and a in self.affines or type(a) is Const for a in args):
            (var, k), *_ = terms.items()  # (+ (+ i 1) 1)  =>  (+ i 2)
            if k == 1:
                name, args = "+" if constant > 0 else "-", (var, Const(abs(constant), INT))
        op = Prim(name, args)
        home = self.home(args)
        (var,) = self.emit(op, (INT,), (hint,) if hint else (), given, home)
        self.definitions[var] = op
        self.affines[var] = affine
        home.shared[key] = var
        if self.nonnegative(affine):
            self.sizes.add(var)
        return var

    def wrapped(self, x: Atom, n: Atom) -> Atom | None:
        """What ``x % n`` is where one turn is enough, as of a neighbour on a ring: no division, and an integer below n.

        ``(% (+ i 1) n)``  =>  ``(select (< (+ i 1) n) (+ i 1) (- (+ i 1) n))`` for an index i below n.
        """
        low, high = self.affine(x), affine_add(affine_add(self.affine(n), self.affine(x), -1), (1, {}), -1)
        with self.inside(self.home((x, n))):
            if not self.fits(x):
                return None
            if self.nonnegative(low):
                if self.nonnegative(high):
                    return x
                if self.nonnegative(affine_add(high, self.affine(n))):
                    return self.select(self.prim("<", x, n), x, self.prim("-", x, n))
            elif self.nonnegative(high) and self.nonnegative(affine_add(low, self.affine(n))):
                return self.select(self.prim("<", x, Const(0, INT)), self.prim("+", x, n), x)
        return None

    def turns(self, c: Atom, x: Atom, y: Atom) -> Atom | None:
        """The n that ``(select c x y)`` is below, and not below 0, where it is what ``wrapped`` makes."""
        test = self.definitions.get(c) if type(c) is Var else None
        if test is None or test.name != "<":
            return None
        (a, b), one, two = test.args, self.affine(x), self.affine(y)
        size = affine_add(one, two, -1)
        if a is x and self.affine(b) == size:  # one from 0 to 2n
            n, low, above = b, one, affine_add(size, two, -1)
        elif a is y and b == Const(0, INT) and (size[0], len(size[1])) in ((0, 1), (size[0], 0)):  # two from -n to n
            n, low, above = next(iter(size[1]), Const(size[0], INT)), one, affine_add(size, two, -1)
            if self.affine(n) != size:
                return None
        else:
            return None
        with self.inside(self.home((c, x, y))):
            fits = self.fits(a) and self.nonnegative(low) and self.nonnegative(affine_add(above, (1, {}), -1))
        return n if fits else None

    def require_equal(self, a: Atom, b: Atom, message: str) -> bool:
        """Make two sizes equal: True if they are or may be (a run-time check is then in place), False if never."""
        if self.same_int(a, b):
            return True
        difference = affine_add(self.affine(a), self.affine(b), -1)
        if not difference[1]:
            return False
        self.emit(Check("==", a, b, message, "shape"), ())
        a, b = self.representative(a), self.representative(b)
        if type(a) is Var:
            self.equal[a] = b
        elif type(b) is Var:
            self.equal[b] = a
        return True

    def require_index(self, index: Atom, dim: Atom, message: str) -> bool:
        """Make ``0 <= index < dim`` hold: False if it never does, a run-time check where it cannot be proven."""
        i, n = self.affine(index), self.affine(self.representative(dim))
        above = affine_add(affine_add(n, i, -1), (1, {}), -1)
        if not i[1] and not n[1]:
            return 0 <= i[0] < n[0]
        if not i[1] and i[0] < 0:
            return False
        if self.nonnegative(i) and self.nonnegative(above):
            return True
        if self.nonnegative(i) and self.check_before_loop(above, message, "bounds"):
            return True
        self.emit(Check("in", index, dim, message), ())
        self.scopes[-1].facts += [i, above]
        return True

    def require_size(self, count: Atom, message: str) -> None:
        """Make ``count >= 0`` hold, by a run-time check where it cannot be proven."""
        affine = self.affine(count)
        if not self.nonnegative(affine):
            self.emit(Check("<=", Const(0, INT), count, message, "shape"), ())
            self.scopes[-1].facts.append(affine)
            self.note_near(affine)

    def check(self, op: Check, a: Atom, c: Atom, made: bool = False) -> None:
        """Repeat a check of another program here, unless it is known to hold; ``made``: that is known because
        it has been made before."""
        if op.relation == "==":
            if self.same_int(a, c):
                return
            ra, rc = self.representative(a), self.representative(c)
            if type(ra) is Var:
                self.equal[ra] = rc
        else:
            i, n = self.affine(a), self.affine(c)
            need = [affine_add(n, i, -1)] if op.relation == "<=" else [i, affine_add(affine_add(n, i, -1), (1, {}), -1)]
            need = [x for x in need if not self.nonnegative(x)]
            home = self.scopes[-1] if made else self.home((a, c))
            if len(need) > 1 and home is not self.scopes[-1]:  # the same in each iteration: as it is, before the loops
                with self.inside(home):
                    return self.check(op, a, c)
            if not made and all(self.check_before_loop(x, op.message, op.kind) for x in need):
                return
            self.scopes[-1].facts += need
            if op.kind == "shape" and a == Const(0, INT):
                self.note_near(n)
        if not made:
            self.emit(Check(op.relation, a, c, op.message, op.kind), ())

    def check_before_loop(self, above: Affine, message: str, kind: str, runs: Sequence[Affine] = ()) -> bool:
        """Check once before the loop what its iterations need: ``above >= 0``, for the last index where it depends on
        the index; that is the last for which the loops inside run, whose last indices are ``runs``. A size that only an
        empty loop would have needed is required as well; a count that is the larger of 0 and another integer is taken
        for the other, which asks for less where that is below 0, or, where the other may be out of range, has nothing
        checked for an index that is not there."""
        scope = self.scopes[-1]
        k = 0 if scope.index is None else above[1].get(scope.index, 0)
        if scope.index is None or k > 0:
            return False
        count = self.counts[scope.index]
        if type(count) is Const and count.value <= 0:  # nothing is needed where nothing runs
            return True
        running = self.running(count)
        last = affine_add(running or self.affine(count), (1, {}), -1)
        if k:
            at = last
            for inner in runs:
                if inner[1].get(scope.index) == -1:
                    end = affine_add(inner, (0, {scope.index: 1}))
                    at = end if self.nonnegative(affine_add(at, end, -1)) else at
            above = affine_add(affine_add(above, (0, {scope.index: 1}), -k), at, k)
        if any(v in scope.vars for v in above[1]):
            return False
        first = [affine_add(r, (0, {scope.index: 1}), -min(0, r[1].get(scope.index, 0))) for r in runs]
        runs = [r for r in (last, *first) if not any(v in scope.vars for v in r[1])]
        empty = k != 0 and running is None and self.may_be_empty(count)
        self.scopes.pop()
        try:
            if not (self.nonnegative(above) or not empty and self.check_before_loop(above, message, kind, runs)):
                used = self.affine_value((max(0, -above[0]), {v: -n for v, n in above[1].items() if n < 0}))
                room = self.affine_value((max(0, above[0]), {v: n for v, n in above[1].items() if n > 0}))
                if empty:
                    used = self.select(self.prim("<", Const(0, INT), count), used, room)
                self.emit(Check("<=", used, room, message, kind), ())
                (scope if empty else self.scopes[-1]).facts.append(above)
        finally:
            self.scopes.append(scope)
        return True

    def may_be_empty(self, count: Atom) -> bool:
        """Whether a count is the larger of 0 and another integer: with 0 there is no last index to look at."""
        op = self.definitions.get(count) if type(count) is Var else None
        return op is not None and op.name == "max" and any(type(a) is Const and a.value <= 0 for a in op.args)

    def affine_value(self, affine: Affine) -> Atom:
        """An atom that holds an affine value."""
        total: Atom = Const(affine[0], INT)
        for v, k in affine[1].items():
            total = self.prim("+", total, self.prim("*", Const(k, INT), v))
        return total

    def trips(self, count: Atom) -> Atom:
        """How often a loop with this count runs, which may be negative: to be divided into parts."""
        return count if self.nonnegative(self.affine(count)) else self.prim("max", Const(0, INT), count)

    def outside(self, size: Atom, scope: Scope) -> Atom | None:
        """A size that was computed inside a closed region, computed again outside; None where it depends on it."""
        if size not in scope.vars:
            return size
        if not any(v in scope.vars for v in self.affine(size)[1]):
            return self.affine_value(self.affine(size))
        op = self.definitions.get(size)  # type: ignore[arg-type]
        if op is None or op.name not in PRIMITIVES or any(a.type != INT for a in op.args):
            return None
        args = [self.outside(a, scope) for a in op.args]
        return None if None in args else self.prim(op.name, *args)  # type: ignore[arg-type]

    # --------------------------------------------------------------------------------------- arrays

    def array_op(
        self,
        name: str,
        args: tuple[Atom, ...],
        result: Type,
        hint: str | None,
        given: bool = False,
        soft: bool = False,
    ) -> Atom:
        key = (name, tuple(map(self.key, args)))
        if name == "array":
            key = (*key, tuple([type(a) is Const and a.soft for a in args]))
        found = None if self.plain else self.shared(key)
        if found is not None:
            return found
        op = Prim(name, args)
        home = self.scopes[-1]
        marks = name == "stop" or name in self.rules  # what is the same in every iteration has one derivative for all
        if name == "select" or marks or name == "get" and self.home(args) is not home:
            home = self.home(args)
            if name == "get" and not self.readable(home, args):
                home = self.scopes[-1]
        (var,) = self.emit(op, (result,), (hint,) if hint else (), given, home, soft)
        self.definitions[var] = op
        if name not in OWN or self.shares_changes and name != "undef":
            home.shared[key] = var
        return var

    def readable(self, scope: Scope, args: tuple[Atom, ...]) -> bool:
        """Whether a subscript is provably in range in an enclosing scope, where a loop may not have been entered."""
        with self.inside(scope):
            return self.in_range(args[0], args[1:])

    def get(self, a: Atom, *indices: Atom, hint: str | None = None, given: bool = False) -> Atom:
        """``(get a i ...)``, in range."""
        if not indices:
            return a
        t = type_of(a)
        assert isinstance(t, Arr) and len(indices) <= t.rank
        if not self.plain:
            op = self.definitions.get(a) if type(a) is Var else None
            if op is not None:
                at = known_place(op, indices[0])
                if at is not None:
                    return self.get(op.args[at], *indices[1:])
                if op.name == "array" and all(x is op.args[0] for x in op.args):
                    return self.get(op.args[0], *indices[1:])
                few = op.name == "array" and len(op.args) <= FEW
                few = few and (len(indices) == t.rank or self.small(Arr(t.elem, t.dims[len(indices) :])))
                either = self.one_of(indices[0]) if few else None
                if either is not None:
                    c, *places = either
                    return self.pick(c, *(self.get(a, i, *indices[1:]) for i in places))
                if op.name == "get":
                    return self.get(op.args[0], *op.args[1:], *indices, hint=hint)
                if op.name == "zeros" and len(indices) == t.rank:
                    return Const(0, INT, soft=True) if t.elem == INT else self.zeros(t.elem)
                if op.name in ("update", "add-at"):
                    past = self.get_past(op, indices)
                    if past is not None:
                        return past
            if a in self.ranges:
                index, (constant, terms) = self.ranges[a]  # type: ignore[index]
                around = constant, {v: k for v, k in terms.items() if v is not index}
                self.fired("ranges")
                return self.affine_value(affine_add(around, self.affine(indices[0]), terms.get(index, 0)))
            if a in self.last:
                final, count = self.last[a]  # type: ignore[index]
                if affine_add(self.affine(indices[0]), self.affine(count), -1) == (-1, {}):
                    self.fired("last-states")
                    return self.get(final, *indices[1:], hint=hint)
        return self.array_op("get", (a, *indices), t.item(len(indices)), hint, given)

    def get_past(self, op: Prim, indices: tuple[Atom, ...]) -> Atom | None:
        """Read an element that an update wrote, or one that it certainly left alone."""
        base, *at, value = op.args
        if len(indices) < len(at):
            return None
        differences = [affine_add(self.affine(i), self.affine(j), -1) for i, j in zip(indices, at)]
        if all(not terms and c == 0 for c, terms in differences):
            if op.name == "update":
                return self.get(value, *indices[len(at) :])
            return None
        if any(not terms and c != 0 for c, terms in differences):
            return self.known_element(base, indices)
        below = self.definitions.get(base) if type(base) is Var else None
        if below is not None and below.name == "zeros" and len(indices) == type_of(base).rank:
            if len(at) == len(indices) and isinstance(type_of(value), Scalar):  # an element of a one-hot array
                hit: Atom = TRUE
                for i, j in zip(indices, at):
                    same = self.prim("=", i, j)
                    hit = same if hit is TRUE else self.prim("and", hit, same)
                return self.select(hit, value, Const(0.0 if type_of(value) == REAL else 0, type_of(value), soft=True))
        return None

    def known_element(self, a: Atom, indices: tuple[Atom, ...]) -> Atom | None:
        """An element that needs no reading of ``a``: one that stays as it was is read from the array's latest version,
        so that an update of it can be done in place."""
        op = self.definitions.get(a) if type(a) is Var else None
        if op is not None:
            if known_place(op, indices[0]) is not None or op.name == "zeros":
                return self.get(a, *indices)
            if op.name in ("update", "add-at"):
                past = self.get_past(op, indices)
                if past is not None:
                    return past
            if op.name == "get":
                a, *indices = *op.args, *indices  # type: ignore[assignment]
        return self.shared(("get", tuple(map(self.key, (a, *indices)))))

    def array(self, items: Sequence[Atom], hint: str | None = None, given: bool = False) -> Atom:
        """``[x ...]`` of scalars or equally shaped arrays; at least one."""
        first = type_of(items[0])
        if not isinstance(first, Arr):
            if any(type_of(x) == REAL for x in items):
                items, first = [self.to_real(x) for x in items], REAL
            result = Arr(first, (integer(len(items)),))
        else:
            result = Arr(first.elem, (integer(len(items)), *first.dims))
        return self.array_op("array", tuple(items), result, hint, given)

    def zeros(self, t: Type, hint: str | None = None, given: bool = False) -> Atom:
        """The zero of a type: a soft constant or an array."""
        if isinstance(t, Scalar):
            return Const(0.0, REAL, soft=True) if t == REAL else Const(0, t)
        if isinstance(t, Data):  # an adjoint's type: its first constructor stands for zero
            return self.make(t.constructors[0], (), hint)
        op = Prim("zeros", t.dims)
        (var,) = self.emit(op, (t,), (hint,) if hint else (), given)
        self.definitions[var] = op
        return var

    @staticmethod
    def small(t: Arr) -> bool:
        """Whether an array's elements are few and counted."""
        total = 1
        for d in t.dims:
            if type(d) is not Const:
                return False
            total *= d.value
        return 0 < total <= SMALL

    def replaced(self, a: Atom, indices: Sequence[Atom], change: Callable[[Atom], Atom]) -> Atom | None:
        """``a`` written out again with one element changed, where its elements and the index are known: the elements
        of a small array are single values."""
        op = self.definitions.get(a) if type(a) is Var else None
        if self.plain or op is None or not self.small(type_of(a)):
            return None
        either = self.one_of(indices[0]) if op.name == "array" and len(op.args) <= FEW else None
        if either is not None:
            c, *places = either
            one, other = (self.replaced(a, (i, *indices[1:]), change) for i in places)
            return None if one is None or other is None else self.pick(c, one, other)
        if type(indices[0]) is not Const:
            return None
        if op.name == "zeros":
            t = type_of(a)
            a = self.array([self.zeros(t.item())] * t.dims[0].value, a.name)
            op = self.definitions[a]
        at = known_place(op, indices[0])
        if at is None:
            return None
        item = op.args[at]
        new = change(item) if len(indices) == 1 else self.replaced(item, indices[1:], change)
        return None if new is None else self.array([*op.args[:at], new, *op.args[at + 1 :]], a.name, a.given)

    def one_of(self, i: Atom) -> tuple[Atom, Atom, Atom] | None:
        """The condition and the two values of an integer that is one of few known ones."""
        op = self.definitions.get(i) if type(i) is Var else None
        if op is None or op.name != "select":
            return None
        if any(type(x) is not Const and self.one_of(x) is None for x in op.args[1:]):
            return None
        return op.args  # type: ignore[return-value]

    def of_each(self, name: str, args: Sequence[Atom]) -> Atom | None:
        """A function of a known integer and of one that is one of two."""
        for a, other in (args, args[::-1]):
            one_of = self.one_of(a) if type(other) is Const else None
            if one_of is not None:
                c, x, y = one_of
                return self.select(c, self.prim(name, x, other), self.prim(name, y, other))
        return None

    def pick(self, c: Atom, x: Atom, y: Atom) -> Atom:
        """``select`` of numbers, or of each element of two small arrays."""
        t = type_of(x)
        if x is y or isinstance(t, Scalar):
            return x if x is y else self.select(c, x, y)
        places = (Const(k, INT) for k in range(t.dims[0].value))  # type: ignore[union-attr]
        return self.array([self.pick(c, self.get(x, k), self.get(y, k)) for k in places])

    def undef(self, t: Type) -> Atom:
        return self.array_op("undef", (), t, None)

    def update(self, a: Atom, indices: Sequence[Atom], x: Atom, hint: str | None = None) -> Atom:
        written = self.replaced(a, indices, lambda item: x)
        if written is not None:
            return written
        if not self.plain and type(x) is Var and self.known_element(a, indices) is x:  # what stands there
            return a
        return self.array_op("update", (a, *indices, x), type_of(a), hint)

    def add_at(self, a: Atom, indices: Sequence[Atom], x: Atom, hint: str | None = None, soft: bool = False) -> Atom:
        """``a`` with ``x`` added to an element or a row; ``soft``: as a term of a sum of differentiation's own."""
        if type(x) is Const and x.soft and x.value == 0:
            return a
        written = self.replaced(a, indices, lambda item: self.add(item, x))
        if written is not None:
            return written
        one = self.one_hot(a, indices)
        if one is not None:
            return self.array_op(one.name, (one.args[0], *indices, self.add(one.args[-1], x)), type_of(a), hint)
        row = self.definitions.get(x) if type(x) is Var and not self.plain else None
        if row is not None and row.name == "array" and len(row.args) <= ROW:
            for k, e in enumerate(row.args):
                a = self.add_at(a, (*indices, Const(k, INT)), e, hint, soft)
            return a
        return self.array_op("add-at", (a, *indices, x), type_of(a), hint, soft=soft or self.soft)

    def one_hot(self, a: Atom, indices: Sequence[Atom]) -> Prim | None:
        """How an array of zeros was made that has something else at one element, this one."""
        op = None if self.plain else put_to_zeros(self.definitions, a)
        if op is None or not len(op.args) - 2 == len(indices) == type_of(a).rank:  # type: ignore[union-attr]
            return None
        return op if all(map(self.same_int, indices, op.args[1:-1])) else None

    def elementwise(self, function: Callable[..., Atom], *arrays: Atom, hint: str | None = None) -> Atom:
        """``function`` over the elements of arrays. What has a lower rank than another (a number has none) is used as
        it is for each of the other's rows, and so is a row alone."""
        rank = max(rank_of(a) for a in arrays)
        counts = [type_of(a).dims[0] if rank_of(a) == rank else None for a in arrays]
        count = wider(counts)

        def body(i: Atom) -> Atom:
            parts = [
                a if n is None else self.get(a, Const(0, INT) if is_one(n) and not is_one(count) else i)
                for a, n in zip(arrays, counts)
            ]
            return self.elementwise(function, *parts) if rank > 1 else function(*parts)

        return self.build(count, body, hint=hint)

    def stop(self, a: Atom) -> Atom:
        """``a`` as a constant to every derivative (see ``without_rules``)."""
        t = type_of(a)
        if type(a) is Const or (t.elem if isinstance(t, Arr) else t) != REAL:
            return a
        return self.array_op("stop", (a,), t, None)

    def ruled(self, rule: Any, y: Atom, args: Sequence[Atom], hint: str | None = None) -> Atom:
        """``y``, whose derivatives by ``args`` a rule gives: see ``Specialiser.ruled``."""
        name = f"rule-{len(self.rules)}"
        self.rules[name] = rule
        return self.array_op(name, (y, *args), type_of(y), hint)

    def add(self, a: Atom, b: Atom) -> Atom:
        """The sum of two equally shaped values."""
        if isinstance(type_of(a), Scalar):
            return self.prim("+", a, b)
        for x, y in ((a, b), (b, a)):
            op = self.definitions.get(x) if type(x) is Var else None
            if op is not None and op.name == "zeros":
                return y
        return self.elementwise(lambda x, y: self.prim("+", x, y), a, b)

    # ---------------------------------------------------------------------------------- control flow

    def type_outside(self, t: Type, scope: Scope) -> Type:
        """The type of a region's result where the region's own variables cannot be seen."""
        if not isinstance(t, Arr):
            return t
        dims = []
        for d in t.dims:
            size = self.outside(d, scope)
            if size is None:
                raise ModelTypeError(
                    "the size of this array is only known inside a branch or an iteration",
                    self.span,
                    "every branch and every iteration must give the same shape; what is made of rows of several lengths"
                    " is made where these are, as in `(build n (fn [i] (sum (slice v 0 i))))`",
                )
            dims.append(size)
        return Arr(t.elem, tuple(dims))

    def under(self, c: Atom, x: Atom, branch: int) -> Atom:
        """What ``x`` is where ``c`` is known to hold (1) or not (2)."""
        op = self.definitions.get(x) if type(x) is Var else None
        while op is not None and op.name == "select" and op.args[0] is c:
            x = op.args[branch]
            op = self.definitions.get(x) if type(x) is Var else None
        return x

    def select(self, c: Atom, x: Atom, y: Atom) -> Atom:
        """``x`` if ``c`` else ``y``, both computed."""
        if type(c) is Const:
            return x if c.value else y
        if not self.plain:
            x, y = self.under(c, x, 1), self.under(c, y, 2)
            if x is y:
                return x
        if type_of(x) != type_of(y):
            x, y = self.to_real(x), self.to_real(y)
        rewritten = None if self.plain else rewrite("select", (c, x, y), self.definitions, self, type_of(x))
        if rewritten is not None:
            return rewritten
        made = self.array_op("select", (c, x, y), type_of(x), None)
        if type(made) is Var and made.type == INT and not self.plain:
            n = self.turns(c, x, y)
            if n is not None:
                self.below(made, n)
            else:
                self.scopes[-1].facts += self.either(made, x, y)
        return made

    def if_(
        self,
        cond: Atom,
        then: tuple[Scope, Sequence[Atom]],
        orelse: tuple[Scope, Sequence[Atom]],
        names: Sequence[str] = (),
        given: bool = False,
    ) -> tuple[Var, ...]:
        """An ``If`` of two finished regions with results of equal types; its variables."""
        if not self.plain:
            both = self.conjunction(cond, then, orelse)
            if both is not None:
                return (both,)  # type: ignore[return-value]
            if then[0].binds and self.alike(then, orelse):
                return self.taken(then)
            same = [k for k, (x, y) in enumerate(zip(then[1], orelse[1])) if self.key(x) == self.key(y)]
            if same:  # what both branches give needs no choice
                kept = [k for k in range(len(then[1])) if k not in same]
                regions = [(scope, [results[k] for k in kept]) for scope, results in (then, orelse)]
                checked = any(type(b.op) is Check or has_checks(Block((b,), ())) for s, _ in regions for b in s.binds)
                out = iter(
                    self.if_(cond, *regions, [names[k] for k in kept if k < len(names)], given)
                    if kept or checked
                    else ()
                )
                return tuple(then[1][k] if k in same else next(out) for k in range(len(then[1])))
            keys = [(self.key(x), self.key(y)) for x, y in zip(then[1], orelse[1])]
            kept = [k for k, key in enumerate(keys) if keys.index(key) == k]
            if len(kept) < len(keys):  # what is chosen twice is chosen once
                regions = [(scope, [results[k] for k in kept]) for scope, results in (then, orelse)]
                found = dict(zip(kept, self.if_(cond, *regions, [names[k] for k in kept if k < len(names)], given)))
                return tuple(found[keys.index(key)] for key in keys)
            terms = [self.term_of_both(x, y, then[0], orelse[0]) for x, y in zip(then[1], orelse[1])]
            if any(terms):  # what both branches add to is added to once
                one, other = ([t[n] if t else r for t, r in zip(terms, rs)] for n, rs in ((1, then[1]), (2, orelse[1])))
                out = self.if_(cond, (then[0], one), (orelse[0], other), names, given)
                return tuple(self.prim("+", t[0], x) if t else x for t, x in zip(terms, out))
            ones = [self.one_of_both(x, y, then[0], orelse[0]) for x, y in zip(then[1], orelse[1])]
            if any(ones):  # what each branch puts to one element of zeros is chosen, and put there after them
                one, other = ([o[n] if o else r for o, r in zip(ones, rs)] for n, rs in ((1, then[1]), (2, orelse[1])))
                out = self.if_(cond, (then[0], one), (orelse[0], other), names, given)
                rows = [o and self.zeros(self.type_outside(type_of(x), then[0])) for o, x in zip(ones, then[1])]
                return tuple(self.update(z, o[0], x) if o else x for o, z, x in zip(ones, rows, out))  # type: ignore
        types = [self.type_outside(type_of(r), then[0]) for r in then[1]]
        op = If(cond, self.close(*then), self.close(*orelse))
        home = self.scopes[-1]
        if not self.plain and home.repeats and all(isinstance(t, Scalar) for t in types):
            if all(kinds_of(arm).isdisjoint((While, Apply)) for arm in blocks_of(op)):  # it ends
                home = self.leaves(op, [cond, *free_vars(op.then), *free_vars(op.orelse)], ())
        with self.inside(home):
            made = self.emit_region(op, types, names, given)
            if not self.plain:
                for v, x, y in zip(made, then[1], orelse[1]):
                    if v.type == INT and x not in then[0].vars and y not in orelse[0].vars:
                        self.scopes[-1].facts += self.either(v, x, y)
                        if type(x) is Const or type(y) is Const:
                            self.definitions[v] = Prim("select", (cond, x, y))
                    elif v.type == REAL and type(x) is type(y) is Const:
                        self.definitions[v] = Prim("if", (cond, x, y))  # what rules ask of it
        return made

    def term_of_both(self, x: Atom, y: Atom, then: Scope, orelse: Scope) -> tuple[Atom, Atom, Atom] | None:
        """Where the results of two branches are the user's sums with a number from outside of them in common: that, and
        what each adds to it."""
        sums = [self.definitions.get(a) if a in scope.vars else None for a, scope in ((x, then), (y, orelse))]  # type: ignore
        if x.type != REAL or any(op is None or op.name != "+" for op in sums) or x in self.softly or y in self.softly:
            return None
        one, other = (op.args for op in sums)  # type: ignore[union-attr]
        for n, a in enumerate(one):
            if type(a) is Var and a in other:  # neither branch sees what the other one makes
                return a, one[1 - n], other[1 - other.index(a)]
        return None

    def one_of_both(self, x: Atom, y: Atom, then: Scope, orelse: Scope) -> tuple[tuple[Atom, ...], Atom, Atom] | None:
        """Where the results of two branches are zeros but for one element, or one of them for none: which, and what is
        there in each."""
        if not isinstance(x.type, Arr) or x.type.elem != REAL:
            return None
        found = []
        for a, scope in ((x, then), (y, orelse)):
            op, made = put_to_zeros(self.definitions, a), self.definitions.get(a)  # type: ignore[arg-type]
            if op is not None:
                places = op.args[1:-1]
                if len(places) != x.type.rank or not scope.vars.isdisjoint(places):  # type: ignore[arg-type]
                    return None
                found.append((places, op.args[-1]))
            elif made is not None and made.name == "zeros":
                found.append((None, Const(0.0, REAL, soft=True)))
            else:
                return None
        (here, v), (there, w) = found
        places = here or there
        if places is None or here and there and list(map(self.affine, here)) != list(map(self.affine, there)):
            return None
        return (places, v, w) if self.surely_there(x.type, places) else None

    def surely_there(self, t: Arr, places: Sequence[Atom]) -> bool:
        """Whether an array is known to have an element here, in no branch that only runs where it has."""
        ends = (affine_add(affine_add(self.affine(d), (1, {}), -1), self.affine(i), -1) for i, d in zip(places, t.dims))
        return all(self.nonnegative(self.affine(i)) for i in places) and all(map(self.nonnegative, ends))

    def leaves(self, op: If | Loop, reads: Sequence[Atom], made: Sequence[Type], before: Sequence[Prim] = ()) -> Scope:
        """Where a branch or a loop is computed that reads so much and makes arrays of such types, and these ``before``:
        outside of the loops around it that do not change it, if it has no checks and is known not to fail there."""
        home = self.scopes[-1]
        if any(map(has_checks, blocks_of(op))):
            return home
        outer = self.home(reads)
        if outer is home:
            return home
        with self.inside(outer):  # what it reads is there, and sizes are known, where a loop has been entered
            fits = self.bind_in_range(op) and self.sized(made) and all(map(self.bind_in_range, before))
        if fits:
            self.fired("hoisting")
        return outer if fits else home

    def conjunction(
        self, cond: Atom, then: tuple[Scope, Sequence[Atom]], orelse: tuple[Scope, Sequence[Atom]]
    ) -> Atom | None:
        """``(if a b False)`` is ``(and a b)``, and ``(if a True b)`` is ``(or a b)``, where b is quickly compared."""
        for name, (scope, results), other in (("and", then, orelse[1]), ("or", orelse, then[1])):
            if len(results) != 1 or type(other[0]) is not Const or type_of(other[0]) != BOOL:
                continue
            if other[0].value != (name == "or") or len(scope.binds) > QUICKLY:
                continue
            if all(type(b.op) is Prim and b.op.name in QUICK for b in scope.binds):
                (result,) = self.taken((scope, results))
                return self.prim(name, cond, result)
        return None

    def alike(self, one: tuple[Scope, Sequence[Atom]], other: tuple[Scope, Sequence[Atom]]) -> bool:
        """Whether two finished regions compute the same."""
        if [type(b.op) for b in one[0].binds] != [type(b.op) for b in other[0].binds]:
            return False
        return structure(self.close(*one)) == structure(self.close(*other))

    def keep(self, scope: Scope) -> None:
        """Bind what a finished region binds in the open scope, where it is shared from then on."""
        here = self.scopes[-1]
        here.binds += scope.binds
        here.vars |= scope.vars
        here.shared.update(scope.shared)

    def taken(self, region: tuple[Scope, Sequence[Atom]]) -> tuple[Atom, ...]:
        """What a finished region binds, bound in the open scope; its results."""
        scope, here = region[0], self.scopes[-1]
        here.binds += scope.binds
        here.vars |= scope.vars
        return tuple(region[1])

    def emit_region(
        self, op: If | Loop | Case, types: Sequence[Type], names: Sequence[str], given: bool
    ) -> tuple[Var, ...]:
        """Emit a branch or a loop, or find the same one made before."""
        if self.plain:
            return self.emit(op, types, names, given)
        key = Alike(op)
        found = self.shared(key)
        if found is None:
            found = self.emit(op, types, names, given)
            self.scopes[-1].shared[key] = found
        return found

    def loop(
        self,
        count: Atom,
        inits: Sequence[Atom],
        body: Iteration,
        names: Sequence[str] = (),
        index_name: str = "i",
        acc_names: Sequence[str] = (),
        given: bool = False,
        pruned: bool = False,
        soft: bool = False,
        snapshots: Atom | None = None,
        room: Atom | None = None,
    ) -> tuple[Var, ...]:
        """A ``Loop``: ``body(i, *accs)`` builds one iteration and returns (next accumulators, what is stacked);
        ``pruned``: what these do not need is dropped at once; ``soft``: it runs over directions of a derivative;
        ``snapshots``: how many states reverse mode keeps of it; ``room``: for how many iterations there is room in what
        is stacked, where that is not the count: the rest is there for nobody."""
        index = Var(index_name, INT, self.span, True, soft)
        known = self.representative(count)
        count = known if type(known) is Const and not self.plain else count  # as a check before has found
        self.counted(index, count)
        accs = tuple(
            Var(acc_names[k] if k < len(acc_names) else "acc", type_of(z), self.span, k < len(acc_names))
            for k, z in enumerate(inits)
        )
        with self.region(Scope(index)) as scope:
            scope.vars.add(index)
            scope.vars.update(accs)
            scope.facts += self.entered(count)
            following, stacked = body(index, *accs)
            if room is not None:
                hints = [*names[len(accs) :], *("t" for _ in stacked)]
                logs = [Var(hint, self.rows_of(room, x), self.span) for hint, x in zip(hints, stacked)]
                scope.vars.update(logs)
                following = [*following, *(self.logged(scope, log, index, x) for log, x in zip(logs, stacked))]
                accs, stacked = (*accs, *logs), ()
        if room is not None:
            inits = [*inits, *(self.undef(log.type) for log in logs)]
        block = self.close(scope, (*following, *stacked))
        if pruned:
            block = tidy(block)
        loop = Loop(count, index, tuple(inits), accs, block, snapshots)
        states = enumerate(zip(accs, inits, following))
        same = [] if self.plain else [k for k, state in states if self.stays(*state)]
        if not same:
            return self.finish(loop, scope, names, given)
        kept = [k for k in range(len(accs)) if k not in same]  # what no iteration changes is what it was at first
        block = substitute(block, {accs[k]: inits[k] for k in same})
        block = Block(block.binds, (*(block.results[k] for k in kept), *block.results[len(accs) :]))
        if any(following[k] is not accs[k] for k in same):
            block = tidy(block)  # the sums with nothing are read by nobody
        all_names = [*names, *[""] * (len(accs) + len(stacked) - len(names))]
        names = [all_names[k] or "t" for k in (*kept, *range(len(accs), len(all_names)))]
        loop = Loop(count, index, tuple(inits[k] for k in kept), tuple(accs[k] for k in kept), block, snapshots)
        out = list(self.finish(loop, scope, names, given)) if block.results or has_checks(block) else []
        for k in same:
            out.insert(k, inits[k])
        return tuple(out)

    def logged(self, scope: Scope, log: Var, index: Var, x: Atom) -> Atom:
        """A log in which the value of an iteration has been stored, as soon as it is there: before the array changes of
        which it may be a row."""
        place = next((k + 1 for k, bind in enumerate(scope.binds) if x in bind.vars), 0)
        count = len(scope.binds)
        after = self.update(log, [index], x)
        scope.binds[place:] = [*scope.binds[count:], *scope.binds[place:count]]
        return after

    @staticmethod
    def rows_of(count: Atom, item: Atom) -> Arr:
        """The type of so many values like one."""
        t = type_of(item)
        return Arr(t.elem, (count, *t.dims)) if isinstance(t, Arr) else Arr(t, (count,))

    def stays(self, acc: Var, init: Atom, following: Atom) -> bool:
        """Whether an iteration leaves an accumulator as it is. Adding 0.0 to it does, unless it is -0.0: the constant
        that it starts from says that it is not."""
        if following is acc:
            return True
        op = self.definitions.get(following) if type(following) is Var else None
        if op is None or op.name not in ("+", "-") or type(init) is not Const or init.type != REAL:
            return False
        a, b = op.args if op.name == "-" or op.args[0] is acc else op.args[::-1]
        negative = init.value == 0 and np.copysign(1.0, init.value) < 0
        return a is acc and type(b) is Const and b.value == 0 and not negative

    def finish(self, op: Loop, scope: Scope, names: Sequence[str], given: bool) -> tuple[Var, ...]:
        """Emit a finished loop: outside the loops around that do not change it."""
        outs = []
        for r in op.body.results[len(op.accs) :]:
            t = self.type_outside(type_of(r), scope)
            outs.append(Arr(t.elem, (op.count, *t.dims)) if isinstance(t, Arr) else Arr(t, (op.count,)))
        blank = not (self.plain or op.accs or has_checks(op.body)) and all(map(self.cleared, op.body.results))
        if blank and not any(map(self.small, outs)):  # the elements of those few are known one by one
            return tuple(self.zeros(t, names[k] if k < len(names) else None, given) for k, t in enumerate(outs))
        home = self.scopes[-1]
        if not self.plain and home.repeats:
            begun = [self.begun(z) for z in op.inits]
            reads = [op.count, *(a for z in op.inits for a in self.needed(z)), *free_vars(op.body)]
            reads += [] if op.snapshots is None else [op.snapshots]
            made = [*outs, *(type_of(z) for z, new in zip(op.inits, begun) if new)]
            outer = self.leaves(op, reads, made, [step for new in begun for step in new.values()])
            if outer is not home:
                with self.inside(outer):  # a loop that is the same in every iteration leaves, with what it begins with
                    inits = [self.anew(new) if new else z for z, new in zip(op.inits, begun)]
                home, op = outer, replace(op, inits=tuple(inits))
        with self.inside(home):
            out = self.emit_region(op, (*(a.type for a in op.accs), *outs), names, given)
        width = len(op.accs)
        if not (self.plain or "last-states" in self.off):
            for v, x in zip(out[width:], op.body.results[width:]):
                if x in op.body.results[:width]:
                    self.last[v] = out[op.body.results.index(x)], op.count
        if not (self.plain or op.accs or "ranges" in self.off):
            for v, x in zip(out, op.body.results):
                affine = self.affine(x) if type_of(x) == INT else None
                if affine is not None and scope.vars.isdisjoint(t for t in affine[1] if t is not op.index):
                    self.ranges[v] = op.index, affine
        return out

    def cleared(self, x: Atom) -> bool:
        """Whether a value is zeros and no more."""
        if type(x) is Const:
            return x.type in (REAL, INT) and x.value == 0 and np.copysign(1.0, x.value) > 0
        op = self.definitions.get(x)  # type: ignore[call-overload]
        return op is not None and op.name == "zeros"

    def begun(self, z: Atom) -> dict[Var, Prim]:
        """The steps that make an array with memory of its own: zeros, or numbers and rows written down, and what is
        stored in them or in another array."""
        changes: list[tuple[Var, Prim]] = []
        steps: dict[Var, Prim] = {}
        op = self.definitions.get(z)  # type: ignore[call-overload]
        while op is not None and op.name in ("update", "add-at"):
            changes.append((z, op))  # type: ignore[arg-type]
            z = op.args[0]
            op = self.definitions.get(z)  # type: ignore[call-overload]
        if op is not None and op.name in ("zeros", "array"):
            for row in op.args if op.name == "array" else ():
                steps.update(self.begun(row))
            steps[z] = op  # type: ignore[index]
        return {**steps, **dict(reversed(changes))}

    def needed(self, z: Atom) -> list[Atom]:
        """What an array needs to be made anew elsewhere, if it is ``begun`` here; anything else is needed itself."""
        steps = self.begun(z)
        return [a for op in steps.values() for a in op.args if a not in steps] if steps else [z]

    def anew(self, steps: Mapping[Var, Prim]) -> Atom:
        """An array that is ``begun``, once more."""
        made: dict[Atom, Atom] = {}
        for v, op in steps.items():
            if op.name == "zeros":
                made[v] = self.zeros(v.type, v.name)  # type: ignore[arg-type]
            else:
                args = tuple(made.get(a, a) for a in op.args)
                made[v] = self.array_op(op.name, args, v.type, v.name)  # type: ignore[arg-type]
        return made[v]

    def while_(
        self,
        inits: Sequence[Atom],
        cond: Callable[..., Atom],
        body: Iteration,
        names: Sequence[str] = (),
        acc_names: Sequence[str] = (),
        given: bool = False,
        snapshots: Atom | None = None,
    ) -> tuple[Atom, ...]:
        """A ``While``: ``cond(*accs)`` gives a truth value, ``body(*accs)`` (next accumulators, what is stacked). The
        final accumulators, the number of iterations, the stacked arrays. ``snapshots`` as for ``loop``."""
        accs = tuple(
            Var(acc_names[k] if k < len(acc_names) else "acc", type_of(z), self.span, k < len(acc_names))
            for k, z in enumerate(inits)
        )
        with self.region(Scope(repeats=True)) as test:
            test.vars.update(accs)
            holds = cond(*accs)
        with self.region(Scope(repeats=True)) as scope:
            scope.vars.update(accs)
            inside = test.vars.difference(accs)
            scope.facts.extend(f for f in self.facts_of(holds, True) if inside.isdisjoint(f[1]))
            following, stacked = body(*accs)
        first, block = self.close(test, (holds,)), self.close(scope, (*following, *stacked))
        same = [k for k, (a, r) in enumerate(zip(accs, following)) if r is a and not self.plain]
        if same:  # an accumulator that no iteration changes is what it was at first
            table = {accs[k]: inits[k] for k in same}
            first, block = substitute(first, table), substitute(block, table)
        kept = [k for k in range(len(accs)) if k not in same]
        results = (*(block.results[k] for k in kept), *block.results[len(accs) :])
        starts = tuple(inits[k] for k in kept)
        op = While(first, Block(block.binds, results), starts, tuple(accs[k] for k in kept), snapshots)
        key = None if self.plain else Alike(op)
        found = self.shared(key) if key is not None else None
        if found is not None:  # the same one, made before
            last = dict(zip(kept, found))
            return (*(last.get(k, inits[k]) for k in range(len(accs))), *found[len(kept) :])
        count = Var("count", INT, self.span)
        self.sizes.add(count)
        outs = []
        for k, r in enumerate(stacked):
            t = self.type_outside(type_of(r), scope)
            elem, dims = (t.elem, t.dims) if isinstance(t, Arr) else (t, ())
            name = names[len(accs) + k] if len(accs) + k < len(names) else "t"
            outs.append(Var(name, Arr(elem, (count, *dims)), self.span))
        finals = {k: Var(names[k] if k < len(names) else "t", accs[k].type, self.span, given) for k in kept}
        made = self.emit_vars(op, (*finals.values(), count, *outs))
        if key is not None:
            self.scopes[-1].shared[key] = made
        return (*(finals.get(k, inits[k]) for k in range(len(accs))), count, *outs)

    # ------------------------------------------------------------------------------- data, functions

    def emit_vars(self, op: Any, variables: tuple[Var, ...]) -> tuple[Var, ...]:
        """Append ``op`` to the open block, binding ``variables``."""
        scope = self.scopes[-1]
        scope.binds.append(Bind(variables, op, self.span))
        scope.vars.update(variables)
        return variables

    def make(self, constructor: Constructor, args: Sequence[Atom], hint: str | None = None, given=False) -> Var:
        """``(Node l r)``: a value of a data type."""
        key = ("make", constructor, *map(self.key, args))
        found = None if self.plain else self.shared(key)
        if found is None:
            op = Make(constructor, tuple(args))
            home = self.home(args)
            (found,) = self.emit(op, (constructor.data,), (hint or constructor.name.lower(),), given, home)
            self.made[found] = op
            home.shared[key] = found
        return found

    def case(
        self,
        value: Atom,
        arms: Sequence[tuple[Constructor, tuple[Var, ...], Scope, Sequence[Atom]]],
        names: Sequence[str] = (),
        given: bool = False,
        known: Sequence[Type] = (),
    ) -> tuple[Var, ...]:
        """A ``Case`` of finished regions, one for each constructor, with results of equal types; its variables.
        ``known``: the types of the first results outside, whose sizes may be fields of the constructor inside."""
        _, _, scope, results = arms[0]
        types = [type_of(r) for r in results]
        sizes: dict[Atom, Atom] = {}
        for t, other in zip(types, known):
            if isinstance(t, Arr) and isinstance(other, Arr):
                sizes.update((d, size) for d, size in zip(t.dims, other.dims) if d in scope.vars)
        types = [Arr(t.elem, tuple(sizes.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t for t in types]
        types = [self.type_outside(t, scope) for t in types]
        blocks = [Arm(c, fields, self.close(scope, results)) for c, fields, scope, results in arms]
        return self.emit_region(Case(value, tuple(blocks)), types, names, given)

    @contextmanager
    def arm(self, constructor: Constructor) -> Iterator[tuple[Scope, tuple[Var, ...]]]:
        """The region of an arm, and fresh variables for the constructor's fields in it."""
        with self.region() as scope:
            table: dict[Atom, Atom] = {}
            for f in constructor.fields:
                t = f.type
                t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
                table[f] = Var(f.name, t, self.span, f.given)
                self.note_sizes(t)
            scope.vars.update(table.values())  # type: ignore[arg-type]
            yield scope, tuple(table.values())  # type: ignore[arg-type]

    def apply(
        self, function: Function, args: Sequence[Atom], names: Sequence[str] = (), given=False
    ) -> tuple[Var, ...]:
        """A call of a function; a variable for each of its results."""
        key = ("apply", function, *map(self.key, args))
        found = None if self.plain else self.shared(key)
        if found is None:
            table: dict[Atom, Atom] = dict(zip(function.params, args))
            out = []
            for k, r in enumerate(function.results):
                t = r.type
                t = Arr(t.elem, tuple(table.get(d, d) for d in t.dims)) if isinstance(t, Arr) else t
                out.append(Var(names[k] if k < len(names) else r.name, t, self.span, given and k < len(names)))
                table[r] = out[-1]
                self.note_sizes(t)
            found = self.emit_vars(Apply(function, tuple(args)), tuple(out))
            self.scopes[-1].shared[key] = found
        return found

    @contextmanager
    def function_scope(self, depth: int) -> Iterator[Scope]:
        """The body of a function that was defined where ``depth`` scopes were open: what was computed since is not
        seen in it, and nothing moves out of it."""
        inner = self.scopes[depth:]
        del self.scopes[depth:]
        equal, assumed = self.equal, self.assumed
        self.equal, self.assumed = {}, {}
        try:
            with self.region() as scope:
                yield scope
        finally:
            self.equal, self.assumed = equal, assumed
            self.scopes.extend(inner)

    def build(
        self, count: Atom, body: Callable[[Atom], Atom], hint: str | None = None, given: bool = False, index_name="i"
    ) -> Atom:
        """``(build count (fn [i] ...))`` with one scalar or array per index."""
        (out,) = self.loop(count, (), lambda i: ((), (body(i),)), (hint,) if hint else (), index_name, (), given)
        return out


def put_to_zeros(made: Mapping[Var, Prim], a: Atom) -> Prim | None:
    """How an array was made that is zeros but for what was put to one place; None of any other."""
    op = made.get(a)  # type: ignore[call-overload]
    if op is None or op.name not in ("update", "add-at"):
        return None
    before = made.get(op.args[0])  # type: ignore[call-overload]
    return op if before is not None and before.name == "zeros" else None


def known_place(op: Any, index: Atom) -> int | None:
    """Which element of an ``array`` written out a known index means; None for one outside, which no run comes to: a
    check before it fails, or a branch that is not taken holds it."""
    if type(op) is Prim and op.name == "array" and type(index) is Const and 0 <= index.value < len(op.args):
        return index.value
    return None


def wider(sizes: Sequence[Atom | None]) -> Atom:
    """The size to which others, None aside, are equal or known to be 1."""
    found = [n for n in sizes if n is not None]
    return next((n for n in found if not is_one(n)), found[0])
