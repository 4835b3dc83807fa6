"""What a builder knows of integers: which are sizes, which are equal, and what the branches and loops around say.

Integers are compared in affine normal form. Every answer is a proof: a subscript is in range, or it is not known to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from ..core import FALSE, INT, TRUE, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Type, Var, blocks_of, type_of
from .affine import Affine, affine_add, affine_key, negated
from .alike import Alike


class Scope:
    """An open block: its bindings and the variables they bind, the values that it can share, the facts
    ``affine >= 0`` that hold in it, the integers that differ little from a size; for the body of a counted loop, its
    index; whether it is run again and again, as that and both parts of a ``while`` are."""

    __slots__ = ("binds", "vars", "shared", "facts", "near", "index", "repeats")

    def __init__(self, index: Var | None = None, repeats: bool = False) -> None:
        self.binds: list[Bind] = []
        self.vars: set[Var] = set()
        self.shared: dict[tuple | Alike, Any] = {}
        self.facts: list[Affine] = []
        self.near: set[Atom] = set()
        self.index = index
        self.repeats = repeats or index is not None


class Bounds:
    """The scopes that are open, and what is known in them of the integers of a program."""

    def __init__(self) -> None:
        self.scopes = [Scope()]
        self.definitions: dict[Var, Prim] = {}
        self.affines: dict[Var, Affine] = {}
        self.counts: dict[Var, Atom] = {}  # loop index -> trip count; what is as well from 0 on and below
        self.sizes: set[Var] = set()  # integers known to be >= 0
        self.ends: set[Var] = set()  # of the counts, what may cancel a term that can make an integer negative
        self.choices: dict[Var, tuple[Atom, Atom]] = {}  # what a branch has chosen of two integers
        self.assumed: dict[tuple, bool] = {}  # equalities of integers that a pass supposes to hold or fail
        self.equal: dict[Var, Atom] = {}  # sizes found equal: a run-time check stands in the program

    def affine(self, atom: Atom) -> Affine:
        """An integer in affine normal form."""
        if type(atom) is Const:
            return atom.value, {}
        known = self.affines.get(atom)
        return known if known is not None else (0, {atom: 1})

    def affine_of(self, name: str, args: tuple[Atom, ...]) -> Affine | None:
        """The affine form of ``(name args ...)``, if it has one."""
        if name == "+":
            return affine_add(self.affine(args[0]), self.affine(args[1]))
        if name == "-":
            return self.multiplied_out(affine_add(self.affine(args[0]), self.affine(args[1]), -1))
        if name == "neg":
            return affine_add((0, {}), self.affine(args[0]), -1)
        if name == "*":
            a, b = self.affine(args[0]), self.affine(args[1])
            if not a[1]:
                a, b = b, a
            if not b[1]:
                return affine_add((0, {}), a, b[0]) if b[0] else (0, {})
        if name in ("//", "%"):
            constant, terms = self.affine(args[0])
            divisor, unknown = self.affine(args[1])
            whole = not unknown and divisor > 0 and all(k % divisor == 0 for k in terms.values())
            if whole and (divisor == 1 or self.fits(args[0])):  # (// (+ 1 (* 2 i)) 2)  =>  i
                rest = constant % divisor, {}
                return rest if name == "%" else (constant // divisor, {v: k // divisor for v, k in terms.items()})
        return None

    def multiplied_out(self, affine: Affine) -> Affine:
        """An affine form with its products multiplied out, where they cancel.

        ``(- (* (+ i 1) n) (* i n))``  =>  ``n``.
        """
        signs = {k > 0 for v, k in affine[1].items() if self.multiplied(v) is not None}
        if len(signs) < 2:
            return affine
        total = self.monomials(affine)
        if any(c and len(m) > 1 for m, c in total.items()):
            return affine
        return total.pop((), 0), {m[0]: c for m, c in total.items() if c}

    def multiplied(self, v: Atom) -> tuple[Atom, ...] | None:
        """The integers that one is the product of."""
        op = self.definitions.get(v)  # type: ignore[arg-type]
        return op.args if op is not None and op.name == "*" and v.type == INT else None  # type: ignore[union-attr]

    def monomials(self, affine: Affine) -> dict[tuple[Var, ...], int]:
        """A sum of products of integers that are no products or sums: what each is multiplied by."""
        total: dict[tuple[Var, ...], int] = {(): affine[0]}
        for v, k in affine[1].items():
            factors = self.multiplied(v)
            inner: dict[tuple[Var, ...], int] = {(v,): 1}  # type: ignore[dict-item]
            if factors is not None:
                x, y = (self.monomials(self.affine(f)) for f in factors)
                inner = {}
                for (m, c), (n, d) in product(x.items(), y.items()):
                    key = tuple(sorted((*m, *n), key=id))
                    inner[key] = inner.get(key, 0) + c * d
            for m, c in inner.items():
                total[m] = total.get(m, 0) + k * c
        return total

    def unturned(self, a: Atom, n: Atom) -> Affine | None:
        """``a`` without multiples of an integer ``n``, by which it is divided to get a rest; None where it has none.

        ``(% (+ i n -2) n)``  =>  ``(% (- i 2) n)``.
        """
        constant, terms = self.affine(a)
        if n not in terms or not self.fits(a):
            return None
        return constant, {v: k for v, k in terms.items() if v is not n}

    def residue(self, a: Atom, n: Atom) -> Affine | None:
        """What leaves the same rest as ``a`` when it is divided by a number ``n``, and is less, if there is such.

        ``(% (+ i (* 2 q) 3) 2)``  =>  ``(% (+ i 1) 2)``.
        """
        if type(n) is not Const or n.value <= 0 or not self.fits(a):
            return None
        constant, terms = self.affine(a)
        rest = constant % n.value, {v: k for v, k in terms.items() if k % n.value}
        return None if rest == (constant, terms) else rest

    def fits(self, atom: Atom) -> bool:
        """Whether what is computed for an integer is its affine form: where a sum or product may wrap, a comparison
        says nothing about the integers in it. Sizes and loop indices are far from 64 bits."""
        affine = self.affine(atom)
        if not affine[1] or affine[1] == {atom: 1}:
            return True
        found = self.magnitude(affine)
        return found is not None and found[0] <= 256 and found[1] <= 2**60

    def magnitude(self, affine: Affine, depth: int = 3) -> tuple[int, int] | None:
        """How many sizes an integer is at most, and what on top of them; None where that is not known. The larger or
        smaller of two integers is as large as they are."""
        constant, terms = affine
        most, rest = 0, abs(constant)
        for v, k in terms.items():
            if v in self.sizes or v in self.counts or any(v in s.near for s in self.scopes):
                most += abs(k)
                continue
            op = self.definitions.get(v)
            if op is None or op.name not in ("max", "min") or not depth:
                return None
            for part in [self.magnitude(self.affine(a), depth - 1) for a in op.args]:
                if part is None:
                    return None
                most, rest = most + abs(k) * part[0], rest + abs(k) * part[1]
        return most, rest

    def note_near(self, size: Affine) -> None:
        """Note an integer of which a size is made, here: that size is exact, for a sum that wraps is found."""
        constant, terms = size
        if len(terms) == 1 and abs(constant) <= 2**60:
            self.scopes[-1].near.update(v for v, k in terms.items() if abs(k) == 1)

    def below(self, v: Var, n: Atom) -> None:
        """Note that an integer is one of those below n, from 0 on."""
        self.counted(v, n)
        self.sizes.add(v)

    def counted(self, index: Var, count: Atom) -> None:
        """Note the index of a loop that runs ``count`` times."""
        self.counts[index] = count
        self.ends.update(v for v, k in self.affine(count)[1].items() if k < 0 or v not in self.sizes)

    def note_sizes(self, t: Type) -> None:
        """The dims of an array that exists are >= 0."""
        if isinstance(t, Arr):
            self.sizes.update(d for d in t.dims if type(d) is Var)

    # --------------------------------------------------------------------------------------- proofs

    def nonnegative(self, affine: Affine, depth: int = 2, cases: int = 2) -> bool:
        """Whether an affine integer is provably >= 0 here: loop indices run below their counts, sizes are >= 0,
        and the conditions of the branches and loops around hold."""
        if self.equal:
            affine = self.normal(affine)
        constant, terms = affine
        if constant >= 0 and all([k > 0 and (v in self.counts or v in self.sizes) for v, k in terms.items()]):
            return True  # a sum of what is never negative, as most subscripts are
        if not terms:
            return False
        hard = self.hard(terms)
        if hard is None:
            low = self.lower_bound(affine)
            if low is not None and low >= 0:
                return True
        if depth:
            first = terms.keys() if hard is None else {hard}  # a proof begins with what cancels one of these
            for scope in self.scopes:
                for fact in scope.facts:
                    if self.equal and not self.equal.keys().isdisjoint(fact[1]):
                        fact = self.normal(fact)
                    if first.isdisjoint(fact[1]):
                        continue
                    shared = [terms[v] // k for v, k in fact[1].items() if v in first and terms[v] * k > 0]
                    for times in {1, *(n for n in shared if n > 1)} if shared else ():
                        if self.nonnegative(affine_add(affine, fact, -times), depth - 1, 0):
                            return True
        return cases > 0 and self.with_either(affine, cases - 1)

    def hard(self, terms: Mapping[Var, int]) -> Var | None:
        """Of the variables of an integer one that makes it as negative as it likes, where the end of no loop cancels
        that: only another thing that is known can. None where there is none."""
        for v, k in terms.items():
            if v in self.counts or k > 0 and v in self.sizes or v in self.ends or v in self.choices or self.equal:
                continue
            op = self.definitions.get(v)
            if op is None or op.name not in ("*", "max"):
                return v
        return None

    def with_either(self, affine: Affine, cases: int) -> bool:
        """Whether an affine integer in which there is one of two others is >= 0 with either of the two."""
        for v, k in affine[1].items():
            op = self.definitions.get(v)
            two = op.args if op is not None and op.name == "max" and k < 0 else self.choices.get(v)
            if two is not None and all(map(self.fits, two)):
                rest = affine_add(affine, (0, {v: 1}), -k)
                return all(self.nonnegative(affine_add(rest, self.affine(a), k), 1, cases) for a in two)
        return False

    def normal(self, affine: Affine) -> Affine:
        """The same value with each size replaced by the one that stands for all equal to it."""
        for v, k in list(affine[1].items()):
            other = self.representative(v)
            if other is not v:
                affine = affine_add(affine_add(affine, (0, {v: 1}), -k), self.affine(other), k)
        return affine

    def lower_bound(self, affine: Affine) -> int | None:
        """What an affine integer is never below, with loop indices at their ends; None where sizes do not say."""
        for _ in range(16):
            indices = [v for v in reversed(affine[1]) if v in self.counts]
            if not indices:
                affine, found = self.last_rows(affine)
                if found:
                    continue
                break
            index = indices[0]
            if len(indices) > 1:  # innermost first: its count may be the index of a loop around
                around = {w for v in indices for w in self.affine(self.counts[v])[1]}
                index = next((v for v in indices if v not in around), index)
            k = affine[1][index]
            affine = affine_add(affine, (0, {index: 1}), -k)
            if k < 0:  # the index's largest value is its count - 1
                affine = affine_add(affine, self.last_index(self.counts[index]), k)
            if self.equal:
                affine = self.normal(affine)
        if all(k > 0 and v in self.sizes for v, k in affine[1].items()):
            return affine[0]
        return None

    def last_rows(self, affine: Affine) -> tuple[Affine, bool]:
        """The same with the first of the terms ``index*size``, the places where rows start, at its end; whether there
        is one. Of few rows: their number times a size is far from 64 bits."""
        for v, k in affine[1].items():
            op = self.definitions.get(v)
            if op is None or op.name != "*" or v in self.sizes:
                continue
            for index, size in (op.args, op.args[::-1]):
                count = self.counts.get(index)  # type: ignore[call-overload]
                if type(count) is Const and 0 < count.value <= 256 and size in self.sizes:
                    affine = affine_add(affine, (0, {v: 1}), -k)
                    return affine_add(affine, (0, {size: 1}), min(0, k) * (count.value - 1)), True
        return affine, False

    def same_int(self, a: Atom, b: Atom) -> bool:
        """Whether two integers are provably equal."""
        a, b = self.representative(a), self.representative(b)
        if a is b or (type(a) is Const and a == b):
            return True
        constant, terms = self.normal(affine_add(self.affine(a), self.affine(b), -1))
        return constant == 0 and not terms

    def representative(self, a: Atom) -> Atom:
        """The size that stands for all that were found equal to ``a``."""
        while type(a) is Var and a in self.equal:
            a = self.equal[a]
        return a

    def decided(self, name: str, args: tuple[Atom, ...]) -> Atom | None:
        """A truth value that is known here: a comparison of integers that bounds decide, and/or of a constant."""
        if name in ("and", "or"):
            for a, b in (args, args[::-1]):
                if type(a) is Const:
                    return b if a.value == (name == "and") else a
            return None
        if len(args) != 2 or any(a.type != INT for a in args):
            return None
        difference = affine_add(self.affine(args[1]), self.affine(args[0]), -1)  # b - a
        if name in ("=", "!="):
            constant, terms = self.normal(difference) if self.equal else difference
            if not terms:
                return TRUE if (constant == 0) == (name == "=") else FALSE
            assumed = self.assumed.get(affine_key(difference), self.assumed.get(affine_key(negated(difference))))
            if assumed is None:
                apart = any(self.nonnegative(affine_add(d, (1, {}), -1)) for d in (difference, negated(difference)))
                return (FALSE if name == "=" else TRUE) if apart else None
            return TRUE if assumed == (name == "=") else FALSE
        if name in (">", ">="):
            difference, name = negated(difference), {">": "<", ">=": "<="}[name]
        if name not in ("<", "<="):
            return None
        strict = affine_add(difference, (1, {}), -1) if name == "<" else difference  # holds: >= 0
        if self.nonnegative(strict):
            return TRUE
        if self.nonnegative(affine_add(negated(strict), (1, {}), -1)):
            return FALSE
        return None

    def facts_of(self, cond: Atom, holds: bool) -> list[Affine]:
        """What a condition between integers says about them."""
        op = self.definitions.get(cond) if type(cond) is Var else None
        if op is None:
            return []
        if op.name == "not":
            return self.facts_of(op.args[0], not holds)
        if op.name == "and" and holds or op.name == "or" and not holds:
            return self.facts_of(op.args[0], holds) + self.facts_of(op.args[1], holds)
        if len(op.args) != 2 or any(type_of(a) != INT for a in op.args) or not all(map(self.fits, op.args)):
            return []
        a, b = map(self.affine, op.args)
        one: Affine = (1, {})
        relation = op.name if holds else {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}.get(op.name)
        if relation in (">", ">="):
            a, b, relation = b, a, {">": "<", ">=": "<="}[relation]
        if relation == "<":
            return [affine_add(affine_add(b, a, -1), one, -1)]
        if relation == "<=":
            return [affine_add(b, a, -1)]
        if relation == "=":
            return [affine_add(b, a, -1), affine_add(a, b, -1)]
        if relation == "!=":
            for gap in (affine_add(b, a, -1), affine_add(a, b, -1)):
                if self.nonnegative(gap):
                    return [affine_add(gap, one, -1)]
        return []

    def entered(self, count: Atom) -> list[Affine]:
        """What holds in the body of a loop: there is a last index, and a count that is no less than 0 is the other."""
        other = self.running(count)
        found = [self.last_index(count), *([] if other is None else [affine_add(other, self.affine(count), -1)])]
        found += [self.last_index(a) for a in self.factors(count)]  # none of two sizes is 0 where their product is not
        return found

    def factors(self, count: Atom) -> list[Atom]:
        """The sizes that a count is the product of, and those that these are."""
        op = self.definitions.get(count) if type(count) is Var else None
        if op is None or op.name != "*" or not all(self.nonnegative(self.affine(a)) for a in op.args):
            return []
        return [f for a in op.args for f in (a, *self.factors(a))]

    def running(self, count: Atom) -> Affine | None:
        """What a count is in its loop: of the larger of 0 and another integer the other, for with 0 nothing runs."""
        op = self.definitions.get(count) if type(count) is Var else None
        if op is not None and op.name == "max" and all(map(self.fits, op.args)):
            for zero, other in (op.args, op.args[::-1]):
                if type(zero) is Const and zero.value <= 0:
                    return self.affine(other)
        return None

    def chosen(self, name: str, args: tuple[Atom, ...]) -> Atom | None:
        """The larger or smaller of two integers, where it is known which."""
        if not all(map(self.fits, args)):
            return None
        a, b = args
        difference = affine_add(self.affine(a), self.affine(b), -1)
        if name == "min":
            difference = negated(difference)
        return a if self.nonnegative(difference) else b if self.nonnegative(negated(difference)) else None

    def between(self, v: Var, op: Prim) -> list[Affine]:
        """What is known of ``v``, the larger or smaller of two integers, or the quotient of one of at least 0."""
        itself: Affine = (0, {v: 1})
        exact = [self.affine(a) for a in op.args if self.fits(a)]
        if op.name == "max":
            sign = self.sign(v, lambda: any(map(self.nonnegative, exact)))
            return [*(affine_add(itself, x, -1) for x in exact), *sign]
        if op.name == "min":
            sign = self.sign(v, lambda: len(exact) == 2 and all(map(self.nonnegative, exact)))
            return [*(affine_add(x, itself, -1) for x in exact), *sign]
        if len(exact) < 2:
            return []
        one, other = exact
        divisor, terms = other
        rows = self.factor(op.args[0], op.args[1])
        if rows is not None and self.nonnegative(affine_add(other, (1, {}), -1)):
            self.below(v, rows)  # of a place in a matrix the row
            return []
        if terms or divisor <= 0 or not self.nonnegative(one):
            return []
        rest = affine_add(one, itself, -divisor)
        sign = self.sign(v, lambda: self.nonnegative(one))
        return [rest, affine_add((divisor - 1, {}), rest, -1), *self.rows_below(itself, one, divisor), *sign]

    def rows_below(self, quotient: Affine, one: Affine, divisor: int) -> list[Affine]:
        """What a quotient is at most, of a place that is below a multiple of the divisor: the last of so many rows."""
        parts = [a for v in one[1] for a in (*getattr(self.definitions.get(v), "args", ()), *self.choices.get(v, ()))]
        found = []
        for x in (one, *(self.affine(a) for a in parts if type(a) is Var and a.type == INT)):
            for fact in [f for scope in self.scopes for f in scope.facts if not x[1].keys().isdisjoint(f[1])]:
                constant, terms = most = affine_add(fact, x)
                if all(k % divisor == 0 for k in terms.values()) and self.nonnegative(affine_add(most, one, -1)):
                    rows = constant // divisor, {u: k // divisor for u, k in terms.items()}
                    found.append(affine_add(rows, quotient, -1))
        return found

    def sign(self, v: Var, known: Callable[[], bool]) -> list[Affine]:
        """That ``v`` is >= 0, if that is ``known``: for good where it is so whatever loops have been entered, for what
        is the same in all iterations leaves them; else here."""
        scopes, self.scopes = self.scopes, self.scopes[:1]
        try:
            always = known()
        finally:
            self.scopes = scopes
        if always:
            self.sizes.add(v)
            return []
        return [(0, {v: 1})] if known() else []

    def factor(self, index: Atom, size: Atom) -> Atom | None:
        """How many rows of a size there are where an index counts the elements of all."""
        count = self.counts.get(index) if type(index) is Var else None
        op = self.definitions.get(count) if type(count) is Var else None
        if op is None or op.name != "*" or not all(self.nonnegative(self.affine(a)) for a in op.args):
            return None
        return next((other for a, other in (op.args, op.args[::-1]) if self.same_int(a, size)), None)

    def either(self, v: Var, x: Atom, y: Atom) -> list[Affine]:
        """What is known of ``v``, one of two integers of which one is no less than the other."""
        if not (self.fits(x) and self.fits(y)):
            return []
        self.choices[v] = x, y
        itself: Affine = (0, {v: 1})
        for low, high in ((self.affine(x), self.affine(y)), (self.affine(y), self.affine(x))):
            if self.nonnegative(affine_add(high, low, -1)):
                sign = self.sign(v, partial(self.nonnegative, low))
                return [affine_add(itself, low, -1), affine_add(high, itself, -1), *sign]
        return []

    # ---------------------------------------------------------------------------- subscripts in range

    def in_range(self, array: Atom, indices: Sequence[Atom]) -> bool:
        """Whether subscripts are provably in range here."""
        for i, dim in zip(indices, type_of(array).dims):
            at = self.affine(i)
            above = affine_add(affine_add(self.affine(dim), at, -1), (1, {}), -1)
            if not (self.nonnegative(at) and self.nonnegative(above)):
                return False
        return True

    def all_in_range(self, block: Block, facts: Sequence[Affine]) -> bool:
        """Whether all subscripts in a block are provably in range here and no size is negative, where ``facts`` hold in
        it."""
        scope = Scope()
        scope.facts += facts
        self.scopes.append(scope)
        try:
            for x in block.binds:
                if not (self.bind_in_range(x.op) and self.sized(v.type for v in x.vars)):
                    return False
                below = [self.counts[v] for v in x.vars if v in self.counts]  # where there are such integers
                if not all(self.nonnegative(affine_add(self.affine(n), (1, {}), -1)) for n in below):
                    return False
                if type(x.op) is Prim and x.op.name in ("max", "min") and x.vars[0].type == INT:
                    scope.facts += self.between(x.vars[0], x.op)
            return True
        finally:
            self.scopes.pop()

    def bind_in_range(self, op: Any) -> bool:
        """The same of one operation, those in its regions included."""
        if type(op) is Prim and op.name in ("get", "update", "add-at"):
            return self.in_range(op.args[0], op.args[1:] if op.name == "get" else op.args[1:-1])
        if type(op) is If:
            arms = ((op.then, True), (op.orelse, False))
            return all(self.all_in_range(x, self.facts_of(op.cond, holds)) for x, holds in arms)
        if type(op) is Loop:
            return self.all_in_range(op.body, self.entered(op.count))
        return all(self.all_in_range(x, ()) for x in blocks_of(op))

    def sized(self, types: Iterable[Type]) -> bool:
        """Whether no size of arrays of these types is negative, provably."""
        return all(self.nonnegative(self.affine(d)) for t in types if isinstance(t, Arr) for d in t.dims)

    def last_index(self, count: Atom) -> Affine:
        """``count - 1``, the last index of a loop: in its body it is >= 0."""
        return affine_add(self.affine(count), (1, {}), -1)
