"""Logarithms of sums of exponentials whose exponents are sums: an exponential for each term, in fewer loops each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core import (
    REAL,
    Atom,
    Bind,
    Block,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    While,
    all_binds,
    blocks_of,
    kinds_of,
    reads,
    real,
    type_of,
    uses,
    with_body,
)
from ..program.builder import Builder
from ..program.dead import dead_code, has_checks, tidy
from ..program.loops import slice_of
from .producers import Frame, Place, Producers, frame_of

#: A sum of products of exponentials, each at most 1, that is less is taken again, below its own largest exponent: terms
#: that underflow are 1e-283 of any other sum, or less, and as floats 1e-13.
LEAST = 1e-25
LOWEST = -sys.float_info.max
GROUPS = 3  # so many exponentials in place of one
LONG = 64  # what is written out of so many parts is one term


def log_sums(program: Program) -> Program:
    """Takes logarithms of sums of exponentials apart where no term of an exponent changes in all of the loops around.

    ``(logsumexp (build k (fn [i] (+ (get a i) (get m i j)))))`` for all ``j``, in each step of a loop that changes
    ``a``  =>  ``p``, ``q``: the largest of ``a`` and of column ``j``; ``s = (sum (build k (fn [i]
    (* (exp (- (get a i) p)) (exp (- (get m i j) q))))))``; ``(+ p q (log s))``. A hidden Markov model of ``k`` states
    takes ``k`` exponentials in each step then, beside ``k * k`` before the first one (``expand``).
    Design decision: that needs the largest terms to be in about the same places; where they are not, so that ``s`` is
    less than ``LEAST``, and where there are infinities, the sum is taken below the largest exponent. It does not need
    any largest element to be subtracted as it is written: where the sum itself would be infinite, or 0, its logarithm
    is not. Terms that depend on two loops or more have to be elements of an array: others have no table.
    """
    made = log_sums_block(Builder(), program.body, program.dims, marks=False)
    return program if made is program.body else dead_code(with_body(program, made))


def log_sums_block(b: Builder, block: Block, sizes: Sequence[Var] = (), marks: bool = True) -> Block:
    """``log_sums`` for a block under construction: before it is differentiated, so that a derivative has as few
    exponentials as the value. ``marks``: what is subtracted is marked as a constant."""
    names = {x.op.name for x in all_binds(block) if type(x.op) is Prim}
    if "log-sums" in b.off or not {"log", "exp"} <= names or Loop not in kinds_of(block):
        return block
    pass_ = LogSums(b, block, marks)
    if not pass_.plans:
        return block
    b.sizes.update(sizes)
    return tidy(pass_.remade(block))


@dataclass(frozen=True, eq=False)
class Term:
    """An exponent, or a part of it: a sum, a difference, a multiple (``name``, of ``parts``), or an atom."""

    atom: Atom
    frame: Frame | None
    name: str = ""
    parts: tuple[Term, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """``exponent``: in the loop ``sum``; the terms of each group have an exponential of their own, ``steady`` are the
    same for all."""

    sum: Loop
    exponent: Term
    groups: list[list[Term]]
    steady: list[Term]

    def leaves(self) -> list[Term]:
        return [leaf for group in self.groups for leaf in group]


#: The index of the loop around, and the sum and what is subtracted from its exponents: as atoms, or arrays.
Sums = tuple[Var, list[tuple[Atom, bool]]]


def zero(a: Atom) -> bool:
    return type(a) is Const and a.value == 0


class LogSums(Producers):
    """``log_sums`` for a block. ``plans``: by the logarithm; ``cancelled``: sums of one with what was subtracted in it,
    and what is left of them; ``sums``: those taken before the loop around."""

    def __init__(self, builder: Builder, block: Block, marks: bool) -> None:
        super().__init__(builder, block)
        self.marks = marks
        self.plans: dict[Bind, Plan] = {}
        self.cancelled: dict[Bind, Atom] = {}
        self.sums: dict[Bind, Sums] = {}
        self.find(block, (), uses(block))

    def find(self, block: Block, around: tuple[Loop | While, ...], used: dict[Var, int]) -> None:
        for x in block.binds:
            op = x.op
            if type(op) is Prim and op.name == "log":
                self.plan(x, block, around, used)
            elif type(op) is If and self.exact(op.cond):
                self.find(op.then, around, used)
            else:
                inside = (*around, op) if type(op) in (Loop, While) else around
                for region in blocks_of(op):
                    self.find(region, inside, used)

    def exact(self, cond: Atom) -> bool:
        """Whether a condition chooses between what this pass has made and the sum as it was."""
        x = self.made.get(cond)
        compares = x is not None and type(x.op) is Prim and x.op.name == "<="
        return compares and type(x.op.args[0]) is Const and x.op.args[0].value == LEAST  # type: ignore[union-attr]

    # ------------------------------------------------------------------------------------- what is there

    def plan(self, x: Bind, block: Block, around: tuple[Loop | While, ...], used: dict[Var, int]) -> None:
        """Note how to take a logarithm apart, if it is one of a sum of exponentials and that saves some."""
        total = self.made.get(x.op.args[0])  # type: ignore[union-attr]
        if len(around) < 2 or total is None or type(total.op) is not Loop:
            return
        loop = self.loop_of_sum = total.op
        if len(loop.accs) != 1 or len(loop.body.results) != 1 or not zero(loop.inits[0]):
            return
        frame = frame_of(loop, None, None)
        found = self.definition(loop.body.results[0], frame)
        if found is None or found[0].name != "+" or loop.accs[0] not in found[0].args:
            return
        added = [a for a in found[0].args if a is not loop.accs[0]]
        found = self.definition(*self.look(added[0], frame, True)) if added else None
        if found is None or found[0].name != "exp":
            return
        self.left = LONG
        exponent = self.term(found[0].args[0], found[1], True)
        moving, steady = self.needed(exponent)
        sets = [s for s in dict.fromkeys(moving.values()) if not any(s < other for other in moving.values())]
        loops = [each for each in around if any(each in s for s in sets)]
        if not 2 <= len(sets) <= GROUPS or any(loop.accs[0] is leaf.atom for leaf in moving):
            return
        groups: list[list[Term]] = [[] for _ in sets]
        for leaf, needs in moving.items():
            groups[next(k for k, s in enumerate(sets) if needs <= s)].append(leaf)
        if all(self.has_table(group, s, loops) for group, s in zip(groups, sets)):
            if exponent.name == "-" and exponent.parts[1] in steady:
                added = self.added_again(x, block, exponent.parts[1].atom, used)
                if added is not None:
                    steady.remove(exponent.parts[1])
                    self.cancelled[added[0]] = added[1]
            self.plans[x] = Plan(loop, exponent, groups, steady)

    def needed(self, exponent: Term) -> tuple[dict[Term, frozenset[Loop | While]], list[Term]]:
        """The terms that change in a sum, and the loops around that change these; the terms that do not."""
        moving: dict[Term, frozenset[Loop | While]] = {}
        steady: list[Term] = []

        def walk(term: Term, more: frozenset[Loop | While]) -> None:
            if not term.name:
                needs = self.changes(term.atom, term.frame)
                if self.loop_of_sum in needs:
                    moving[term] = (needs | more) - {self.loop_of_sum}
                else:
                    steady.append(term)
            elif term.name in ("*", "/"):
                walk(term.parts[0], more | self.changes(term.parts[1].atom, term.parts[1].frame))
            else:
                for part in term.parts:
                    walk(part, more)

        walk(exponent, frozenset())
        return moving, steady

    def added_again(self, x: Bind, block: Block, subtracted: Atom, used: dict[Var, int]) -> tuple[Bind, Atom] | None:
        """The sum of a logarithm, and of other terms maybe, with what has been subtracted from all exponents, and the
        sum without it; None unless nothing else reads the logarithm."""
        positive = True
        while used.get(x.vars[0]) == 1:
            v, x = x.vars[0], next((y for y in block.binds if x.vars[0] in reads(y)), x)
            if x.vars[0] is v or type(x.op) is not Prim or x.op.name not in ("+", "-"):
                return None
            first, second = x.op.args
            if x.op.name == "-" and v is second:
                positive = not positive
            elif (second if v is first else first) is subtracted and positive == (x.op.name == "+"):
                return x, v
        return None

    def has_table(self, group: list[Term], needs: frozenset[Loop | While], loops: list[Loop | While]) -> bool:
        """Whether the exponentials of a group leave the outermost of the loops that do not change them: those that
        change in several loops inside of it do if they are made of an array's elements."""
        out = next(k for k, each in enumerate(loops) if each not in needs)
        path = {self.loop_of_sum, *(each for each in loops[out + 1 :] if each in needs)}
        return len(path) == 1 or any(self.spans(leaf.atom, leaf.frame, path) for leaf in group)

    def spans(self, a: Atom, frame: Frame | None, path: set[Loop | While]) -> bool:
        """Whether a number is made of an element of an array that each of some loops takes to another place of it."""
        seen: set[Place] = set()
        todo: list[Place] = [(a, frame)]
        while todo:
            found = None if todo[-1] in seen else self.definition(*todo[-1])
            seen.add(todo.pop())
            if found is not None and found[0].name != "get":
                todo += ((x, found[1]) for x in found[0].args)
            elif found is not None:
                moved = [self.changes(x, found[1]) & path for x in found[0].args[1:]]
                if all({each} in moved for each in path):
                    return True
        return False

    def term(self, a: Atom, frame: Frame | None, whole: bool = False) -> Term:
        """An exponent as a sum of terms that change in different loops; of the ``whole`` one also what is the same in
        all iterations is a term."""
        seen, inside = self.look(a, frame, True)
        op, inner = self.definition(seen, inside) or (None, None)
        self.left -= 1
        if op is None or type_of(seen) != REAL or self.left < 0:
            return Term(a, frame)
        steady = [self.loop_of_sum not in self.changes(x, inner) for x in op.args]
        if op.name in ("+", "-", "neg"):
            outer = whole and sum(steady) == len(steady) - 1
            made = Term(a, frame, op.name, tuple(self.term(x, inner, outer) for x in op.args))
            if outer:
                return made
        elif op.name in ("*", "/") and (steady[1] or steady[0] and op.name == "*"):
            x, by = op.args if steady[1] else reversed(op.args)
            made = Term(a, frame, op.name, (self.term(x, inner, whole), Term(by, inner)))
        else:
            return Term(a, frame)
        return made if len(set(self.needed(made)[0].values())) > 1 else Term(a, frame)

    # ----------------------------------------------------------------------------------------- what is made

    def loop(self, op: Loop, bind: Bind) -> Sequence[Atom]:
        for x in op.body.binds if not (op.accs or self.seeing) else ():
            if x in self.plans:
                self.sums_first(x, op)
        return super().loop(op, bind)

    def bind(self, bind: Bind) -> None:
        if self.seeing:
            self.copy(bind)
        elif bind in self.plans:
            self.here[bind.vars[0]] = self.apart(bind)
        elif bind in self.cancelled:
            self.here[bind.vars[0]] = self.atom(self.cancelled[bind])
        else:
            self.copy(bind)

    def sums_first(self, x: Bind, op: Loop) -> None:
        """Take the sums of all iterations of a loop before it, where nothing may fail: that loop has no branches."""
        plan = self.plans[x]
        if has_checks(op.body):  # of what is read, maybe
            return
        needed = slice_of(op.body, [v for leaf in plan.leaves() for v in self.read(leaf.atom, leaf.frame)])
        found: list[Atom] = []
        inside: list[Atom] = []

        def body(i: Atom):
            self.here[op.index] = i
            self.block(needed)
            found.extend(self.sum_of(plan))
            inside.extend(a for a in found if a in self.b.scopes[-1].vars)
            return (), inside

        arrays = dict(zip(inside, self.b.loop(self.atom(op.count), (), body, ("sums",), op.index.name)))
        self.sums[x] = op.index, [(arrays.get(a, a), a in arrays) for a in found]

    def sum_of(self, plan: Plan) -> list[Atom]:
        """The sum of products of exponentials, and the exponents that they are below."""
        b, count = self.b, self.atom(plan.sum.count)
        parts = [self.built(plan, group) for group in plan.groups]
        most = [self.largest(count, x) for x in parts]

        def power(x: Atom, m: Atom, i: Atom) -> Atom:
            return b.prim("exp", b.prim("-", b.get(x, i), m))

        def table(x: Atom, m: Atom) -> Atom | None:
            """The exponentials of a group that the loop around does not change: a derivative remembers them."""
            if {x, m} & b.scopes[-1].vars:
                return None
            return b.build(count, lambda i: power(x, m, i), index_name=plan.sum.index.name)

        made = [(table(x, m), x, m) for x, m in zip(parts, most)]

        def factors(i: Atom) -> Atom:
            product, *others = (power(x, m, i) if e is None else b.get(e, i) for e, x, m in made)
            for x in others:
                product = b.prim("*", product, x)
            return product

        return [self.added(count, factors), *most]

    def apart(self, x: Bind) -> Atom:
        """The logarithm of a sum of exponentials from those of its terms; the sum as it was where that is too small."""
        b, plan = self.b, self.plans[x]
        b.fired("log-sums")
        if x in self.sums:
            index, made = self.sums[x]
            total, *most = (b.get(a, self.atom(index)) if stacked else a for a, stacked in made)
        else:
            total, *most = self.sum_of(plan)
        count = self.atom(plan.sum.count)
        enough = b.prim("<=", real(LEAST), self.constant(total))
        with b.branch_region(enough, True) as fast:
            quick = b.sum([*most, b.prim("log", total)])
        with b.branch_region(enough, False) as other:
            whole = self.built(plan, plan.leaves())
            top = b.prim("min", self.largest(count, whole), real(-LOWEST))
            below = self.added(count, lambda i: b.prim("exp", b.prim("-", b.get(whole, i), top)))
            exact = b.prim("+", top, b.prim("log", below))
        (found,) = b.if_(enough, (fast, [quick]), (other, [exact]), [x.vars[0].name])
        more = self.part(plan.exponent, plan.steady)
        return found if more is None else b.prim("+", found, more)

    def built(self, plan: Plan, terms: Sequence[Term]) -> Atom:
        """The sums of some terms, as an array: what is dear in them is computed once."""

        def element(i: Atom) -> Atom:
            self.at = i
            return self.part(plan.exponent, terms)  # type: ignore[return-value]

        return self.b.build(self.atom(plan.sum.count), element, index_name=plan.sum.index.name)

    def largest(self, count: Atom, x: Atom) -> Atom:
        """The largest element, not less than the lowest number; a constant to derivatives, which its logarithm and its
        exponential cancel."""
        b, x = self.b, self.constant(x)

        def body(i: Atom, most: Atom):
            return [b.prim("max", most, b.get(x, i))], ()

        return self.constant(b.loop(count, (real(LOWEST),), body, ("most",), "i", ("most",))[0])

    def constant(self, a: Atom) -> Atom:
        """An atom of which what is found out has no derivative."""
        return self.b.stop(a) if self.marks else a

    def added(self, count: Atom, term: Callable[[Atom], Atom]) -> Atom:
        b = self.b
        terms = b.build(count, term)
        (total,) = b.loop(count, (real(0.0),), lambda i, s: ([b.prim("+", s, b.get(terms, i))], ()), ("sum",))
        return total

    def part(self, term: Term, terms: Sequence[Term]) -> Atom | None:
        """The sum of some of its terms, as it is written; None without any."""
        if not term.name:
            return self.value(term.atom, term.frame) if term in terms else None
        b = self.b
        x = self.part(term.parts[0], terms)
        if term.name in ("*", "/"):
            return None if x is None else b.prim(term.name, x, self.value(term.parts[1].atom, term.parts[1].frame))
        y = self.part(term.parts[1], terms) if len(term.parts) > 1 else None
        if x is not None and (y is not None or term.name == "neg"):
            return b.prim(term.name, *(a for a in (x, y) if a is not None))
        return x if y is None else b.prim("neg", y) if term.name == "-" else y
