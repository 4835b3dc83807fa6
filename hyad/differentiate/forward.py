"""Forward mode: symbolic differentiation of A-normal form with its lets (Lantern Figs. 1, 2 and 4; dF~ Fig. 7).

    d(let y = e in r)  =  let y = e; ẏ = de in dr

Each active binding is followed by the bindings of its tangents, one for each direction that reaches it (of operations
in a row, all values come first, where what is equal is shared). Several directions are carried at once, so that a
Jacobian shares one primal; a tangent that is zero has no binding at all.

A call of a recursive function becomes a call of its derivative: one function for each pattern of arguments that have
tangents, which takes these beside the arguments and gives the results and their tangents. The tangent of a value of a
data type is of the type's tangent type (``adjoints``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Function,
    If,
    Loop,
    Make,
    Prim,
    Var,
    While,
    all_binds,
    free_vars,
    is_zero,
    real,
    type_of,
)
from ..program.accumulators import Pick, picked, starts_with
from ..program.builder import Builder
from ..program.dead import has_checks, tidy
from ..program.names import tangent
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from .activity import activity, differentiable, reach_of, union
from .adjoints import copied, fill_body, like, pack, prepared, unpack, vanishes, zero
from .partials import Partials
from .resting import Resting

NOTHING_RESTS = Resting(Block((), ()), {})


class Search(NamedTuple):
    """The accumulator ``number`` of a loop is one, by ``pick``, of what ``block`` gives: the largest, or the least."""

    number: int
    pick: Pick
    block: Block


def jvp(
    b: Builder,
    block: Block,
    here: dict[Var, Atom],
    tangents: dict[Var, dict[int, Atom]],
    known: dict[Var, Atom] | None = None,
) -> tuple[tuple[Atom, ...], list[dict[int, Atom]]]:
    """Emit ``block`` and its tangents into the open scope.

    ``here`` says what the block's parameters are there, ``tangents`` gives theirs by direction; ``known`` are tangents,
    in direction 0, of variables of the block that need not be computed again. Returns the results and, for each, its
    tangents by direction (none: zero).
    """
    pass_ = Forward(b, tangents)
    pass_.known = known or {}
    pass_.here.update(here)
    activity(block, pass_.active, pass_.reach)
    pass_.resting = Resting(block, pass_.active)
    results = pass_.block(block)
    return results, [pass_.dots(r) for r in block.results]


class Forward(Rebuild):
    """``dot`` maps an active variable of the old program to its tangents by direction."""

    def __init__(self, builder: Builder, tangents: dict[Var, dict[int, Atom]]) -> None:
        super().__init__(builder)
        self.dot = {v: dict(ts) for v, ts in tangents.items()}
        self.known: dict[Var, Atom] = {}
        self.active = {v: sum(1 << d for d in ts) for v, ts in tangents.items()}
        self.reach = builder.memo.setdefault(("reach",), {})
        self.resting = NOTHING_RESTS

    def dots(self, a: Atom) -> dict[int, Atom]:
        return self.dot.get(a, {}) if type(a) is Var else {}

    def directions(self, v: Atom) -> list[int]:
        bits = self.active.get(v, 0) if type(v) is Var else 0
        return [d for d in range(bits.bit_length()) if bits >> d & 1]

    def tangent_or_zero(self, a: Atom, d: int) -> Atom:
        found = self.dots(a).get(d)
        if found is None:
            x = self.atom(a)
            found = self.b.undef(type_of(x)) if self.never_read(x) else zero(self.b, x)
        return found

    def never_read(self, a: Atom) -> bool:
        """Whether an array holds nothing yet: what is read of it is written first, and so is its tangent."""
        op = self.b.definitions.get(a) if type(a) is Var else None
        return op is not None and op.name == "undef" and isinstance(a.type, Arr)  # type: ignore[union-attr]

    def block(self, block: Block) -> tuple[Atom, ...]:
        """A block's bindings and their tangents; its results.

        Design decision: the values of operations in a row come before their tangents, which are often values of the
        program themselves, up to sign (a rotation's columns): a tangent finds them, and nobody looks for it.
        """
        todo: list[Bind] = []
        soft = self.b.soft
        for bind in block.binds:
            if type(bind.op) is Prim and not self.b.plain:
                self.b.span, self.b.soft = bind.span, bind.soft
                self.copy(bind)
                todo.append(bind)
                continue
            self.follow(todo)
            self.b.span, self.b.soft = bind.span, bind.soft
            self.bind(bind)
        self.follow(todo)
        self.b.soft = soft
        return self.atoms(block.results)

    def follow(self, todo: list[Bind]) -> None:
        """The tangents of operations whose values are there."""
        for bind in todo:
            self.b.span = bind.span
            self.move(bind)
        todo.clear()

    def move(self, bind: Bind) -> None:
        """The tangents of an operation whose value is there."""
        var = bind.vars[0]
        if self.active.get(var):
            with self.b.differentiating():
                dots = self.prim_tangents(bind)
            if dots:
                self.dot[var] = dots
            else:
                self.dot.pop(var, None)  # that of another iteration

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim:
            self.copy(bind)
            self.move(bind)
        elif bind.vars and all(v in self.known for v in bind.vars):
            self.copy(bind)
            self.take([(v, 0) for v in bind.vars], [self.known[v] for v in bind.vars])
        elif any(self.active.get(v) for v in bind.vars):
            self.CLAUSES[type(op)](self, op, bind)
        else:
            self.copy(bind)

    # dy = sum_k (dy/dx_k) dx_k
    def prim_tangents(self, bind: Bind) -> dict[int, Atom]:
        op, var = bind.op, bind.vars[0]
        assert type(op) is Prim
        b, name = self.b, op.name
        args = self.atoms(op.args)
        row = PRIMITIVES.get(name)
        hint, given = tangent(var.name), var.given
        if row is not None:
            if row.jvp is not None or row.vjp is not None:
                from .own_rules import custom_tangents

                return custom_tangents(b, row, args, self.here[var], [self.dots(a) for a in op.args])
            partials = Partials(b, row, args, self.here[var])
            moving = [(k, self.dots(a)) for k, a in enumerate(op.args) if self.dots(a)]
            out: dict[int, Atom] = {}
            for d in sorted({d for _, dots in moving for d in dots}):
                partials.steep = self.resting.steep(bind, d)
                total = partials.combine([(k, dots[d]) for k, dots in moving if d in dots], hint, given)
                if not is_zero(total):
                    out[d] = total
            return out
        out = {}
        for d in sorted({d for a in op.args for d in self.dots(a)}):
            if name in b.rules:
                rule = b.rules[name]
                moves = [self.tangent_or_zero(a, d) for a in op.args[1 : 1 + rule.moving]]
                made = rule.tangent(args[1:], self.here[var], moves)
            elif name == "get":
                made = b.get(self.dots(op.args[0])[d], *args[1:], hint=hint, given=given)
            elif name == "array":
                made = b.array([self.tangent_or_zero(a, d) for a in op.args], hint, given)
            elif name == "select":
                made = b.select(args[0], self.tangent_or_zero(op.args[1], d), self.tangent_or_zero(op.args[2], d))
            else:  # update and add-at are linear in the array and the element
                base, x = self.tangent_or_zero(op.args[0], d), self.tangent_or_zero(op.args[-1], d)
                made = (b.update if name == "update" else b.add_at)(base, args[1:-1], x, hint)
            if not is_zero(made):
                out[d] = made
        return out

    # d(if c a b) = (if c da db): the branch not taken contributes nothing
    def if_tangents(self, op: If, bind: Bind) -> None:
        b, cond = self.b, self.atom(op.cond)
        wanted = [(v, d) for v in bind.vars for d in self.directions(v)]
        regions = []
        for block, holds in ((op.then, True), (op.orelse, False)):
            with b.branch_region(cond, holds) as scope:
                results = self.block(block)
                of = dict(zip(bind.vars, block.results))
                moved = [self.tangent_or_zero(of[v], d) for v, d in wanted]
            regions.append((scope, [*results, *moved]))
        b.span = bind.span
        names = [v.name for v in bind.vars] + [tangent(v.name) for v, _ in wanted]
        out = b.if_(cond, *regions, names=names, given=bind.vars[0].given)
        self.define(bind, out)
        self.take(wanted, out[len(bind.vars) :])

    # d(ifold f z n): the accumulators and their tangents go round together
    # m = (fold max z v): m and the index where it stands; ṁ is v̇ there, which need not be known on the way
    def loop_tangents(self, op: Loop, bind: Bind) -> None:
        b, width = self.b, len(op.accs)
        searches = [] if b.plain else [s for k in range(width) if (s := self.search(op, k)) is not None]
        found = {op.accs[s.number] for s in searches}
        carried = [(a, d) for a in op.accs if a not in found for d in self.directions(a)]
        inits = [*self.atoms(op.inits)]
        start = dict(zip(op.accs, op.inits))
        dot_inits = [self.tangent_or_zero(start[a], d) for a, d in carried]
        stacked = [(v, r, d) for v, r in zip(bind.vars[width:], op.body.results[width:]) for d in self.directions(v)]

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            for a in op.accs:
                self.dot.pop(a, None)
            self.take(carried, accs[width:])
            results = self.block(op.body)
            after = dict(zip(op.accs, op.body.results))
            moved = [self.tangent_or_zero(after[a], d) for a, d in carried]
            outs = [self.tangent_or_zero(r, d) for _, r, d in stacked]
            places = [s.pick.place(self, before, i) for s, before in zip(searches, accs[width + len(carried) :])]
            return [*results[:width], *moved, *places], [*results[width:], *outs]

        names = [v.name for v in bind.vars[:width]] + [tangent(a.name) for a, _ in carried]
        names += [v.name for v in bind.vars[width:]] + [tangent(v.name) for v, _, _ in stacked]
        names[width + len(carried) : width + len(carried)] = ["at"] * len(searches)
        acc_names = [a.name for a in op.accs] + [tangent(a.name) for a, _ in carried] + ["at"] * len(searches)
        count, first = self.atom(op.count), set()
        for s in searches:  # what the first iteration looks at anyway need not be known before the loop
            test = s.pick.test
            if test and starts_with(self, op, s.block.results[0], inits[s.number], count):
                inits[s.number] = real(float("-inf" if test.name == "max" else "inf"))
                first.add(s.number)
        starts = [*inits, *dot_inits, *(Const(0 if s.number in first else -1, INT) for s in searches)]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        given = bind.vars[0].given
        out = b.loop(count, starts, body, names, op.index.name, acc_names, given, snapshots=kept)
        b.span = bind.span
        finals, rest = out[:width], out[width:]
        dots, rest = rest[: len(carried)], rest[len(carried) :]
        places, rest = rest[: len(searches)], rest[len(searches) :]
        outs, dot_outs = rest[: len(bind.vars) - width], rest[len(bind.vars) - width :]
        self.define(bind, (*finals, *outs))
        final_of = dict(zip(op.accs, bind.vars))
        self.take([(final_of[a], d) for a, d in carried], dots)
        self.take([(v, d) for v, _, d in stacked], dot_outs)
        for s, at in zip(searches, places):
            self.at_place(op, s, at, bind.vars[s.number], s.number in first)

    def search(self, op: Loop, k: int) -> Search | None:
        """What the accumulator ``k`` of a loop is picked from, where that needs no other accumulator."""
        acc = op.accs[k]
        if not self.directions(acc):
            return None
        pick = picked(op.body, acc, op.body.results[k])
        if pick is None:
            return None
        block = tidy(Block(op.body.binds, (pick.value,)))
        if has_checks(block) or not set(op.accs).isdisjoint(free_vars(block)):
            return None
        return Search(k, pick, block)

    def at_place(self, op: Loop, s: Search, at: Atom, final: Var, first: bool) -> None:
        """The tangents of what a search found: those of the iteration ``at``, of its start where there is none.
        ``first``: it starts with what its first iteration finds."""
        b, wanted = self.b, self.directions(op.accs[s.number])

        def there() -> list[Atom]:
            self.here[op.index] = at
            self.block(s.block)
            return [self.tangent_or_zero(s.block.results[0], d) for d in wanted]

        if first:
            self.take([(final, d) for d in wanted], there())
            return
        found = b.prim(">=", at, Const(0, INT))
        with b.branch_region(found, True) as inside:
            moved = there()
        with b.branch_region(found, False) as start:
            kept = [self.tangent_or_zero(op.inits[s.number], d) for d in wanted]
        names = [tangent(final.name)] * len(wanted)
        self.take([(final, d) for d in wanted], b.if_(found, (inside, moved), (start, kept), names))

    # d(while c f z): as a loop's; the condition has no derivative
    def while_tangents(self, op: While, bind: Bind) -> None:
        b, width = self.b, len(op.accs)
        carried = [(a, d) for a in op.accs for d in self.directions(a)]
        start = dict(zip(op.accs, op.inits))
        inits = [*self.atoms(op.inits), *(self.tangent_or_zero(start[a], d) for a, d in carried)]
        outs = bind.vars[width + 1 :]
        stacked = [(v, r, d) for v, r in zip(outs, op.body.results[width:]) for d in self.directions(v)]

        def cond(*accs: Atom) -> Atom:
            active, self.active = self.active, {}
            self.here.update(zip(op.accs, accs))
            holds = self.block(op.cond)[0]
            self.active = active
            return holds

        def body(*accs: Atom):
            self.here.update(zip(op.accs, accs))
            for a in op.accs:
                self.dot.pop(a, None)
            self.take(carried, accs[width:])
            results = self.block(op.body)
            after = dict(zip(op.accs, op.body.results))
            moved = [self.tangent_or_zero(after[a], d) for a, d in carried]
            return [*results[:width], *moved], [*results[width:], *(self.tangent_or_zero(r, d) for _, r, d in stacked)]

        names = [v.name for v in bind.vars[:width]] + [tangent(a.name) for a, _ in carried]
        names += [v.name for v in outs] + [tangent(v.name) for v, _, _ in stacked]
        acc_names = [a.name for a in op.accs] + [tangent(a.name) for a, _ in carried]
        kept = None if op.snapshots is None else self.atom(op.snapshots)
        out = b.while_(inits, cond, body, names, acc_names, bind.vars[0].given, kept)
        b.span = bind.span
        finals, dots, rest = out[:width], out[width : width + len(carried)], out[width + len(carried) :]
        self.define(bind, (*finals, *rest[: 1 + len(outs)]))
        final_of = dict(zip(op.accs, bind.vars))
        self.take([(final_of[a], d) for a, d in carried], dots)
        self.take([(v, d) for v, _, d in stacked], rest[1 + len(outs) :])

    # d(C x ...) = (C̄ dx ...)
    def make_tangents(self, op: Make, bind: Bind) -> None:
        b, (v,) = self.b, bind.vars
        self.copy(bind)
        args = self.atoms(op.args)
        for d in sorted({d for a in op.args for d in self.dots(a)}):
            parts = {k: self.dots(a)[d] for k, a in enumerate(op.args) if d in self.dots(a)}
            made = pack(b, op.constructor, args, parts, tangent(v.name))
            if not vanishes(b, made):
                self.dot.setdefault(v, {})[d] = made

    # d(match e (C x ...) a) = (match de (C̄ dx ...) da), in the arm of e's constructor
    def case_tangents(self, op: Case, bind: Bind) -> None:
        b, value = self.b, self.atom(op.value)
        wanted = [(v, d) for v in bind.vars for d in self.directions(v)]

        def inside(arm, fields: Sequence[Atom]) -> list[Atom]:
            self.here.update(zip(arm.fields, fields))
            for f in arm.fields:
                self.dot.pop(f, None)
            for d, t in self.dots(op.value).items():
                for k, x in unpack(b, arm.constructor, t, fields).items():
                    if not vanishes(b, x):
                        self.dot.setdefault(arm.fields[k], {})[d] = x
            results = self.block(arm.block)
            of = dict(zip(bind.vars, arm.block.results))
            return [*results, *(self.tangent_or_zero(of[v], d) for v, d in wanted)]

        known = b.made.get(value) if type(value) is Var and not b.plain else None
        if known is not None:
            out: Sequence[Atom] = inside(op.arms[known.constructor.tag], known.args)
        else:
            arms = []
            for arm in op.arms:
                with b.arm(arm.constructor) as (scope, fields):
                    results = inside(arm, fields)
                arms.append((arm.constructor, fields, scope, results))
            b.span = bind.span
            names = [v.name for v in bind.vars] + [tangent(v.name) for v, _ in wanted]
            types = [self.type(v.type) for v in (*bind.vars, *(v for v, _ in wanted))]
            out = b.case(value, arms, names, bind.vars[0].given, types)
        self.define(bind, out)
        self.take(wanted, out[len(bind.vars) :])

    # d(f x ...) = (ḟ x ... dx ...)
    def apply_tangents(self, op: Apply, bind: Bind) -> None:
        bits = tuple(union(1 << d for d in self.dots(a)) for a in op.args)
        if not any(bits):
            return self.copy(bind)
        dots = [(a, d) for a in op.args for d in sorted(self.dots(a))]
        function, wanted = derivative(self.b, op.function, bits)
        args = [*self.atoms(op.args), *(self.dots(a)[d] for a, d in dots)]
        names = [v.name for v in bind.vars] + [tangent(bind.vars[k].name) for k, _ in wanted]
        out = self.b.apply(function, args, names, bind.vars[0].given)
        self.define(bind, out)
        self.take([(bind.vars[k], d) for k, d in wanted], out[len(bind.vars) :])

    CLAUSES = {
        If: if_tangents,
        Loop: loop_tangents,
        While: while_tangents,
        Make: make_tangents,
        Case: case_tangents,
        Apply: apply_tangents,
    }

    def take(self, wanted: Sequence[tuple[Var, int]], atoms: Sequence[Atom]) -> None:
        for (v, d), a in zip(wanted, atoms):
            self.dot.setdefault(v, {})[d] = a


class Wide(Forward):
    """All directions in one tangent: that of a number is an array of one number per direction, that of an array has a
    dimension more, the last.

        y = p(x)  =>  y = p(x); ẏ = (build n (fn [d] (* p'(x) (get ẋ d))))

    Design decision: for many directions through loops. The code does not grow with their number, and they are the
    innermost loops, over neighbouring elements.
    """

    def __init__(self, builder: Builder, tangents: dict[Var, Atom], width: Atom) -> None:
        super().__init__(builder, {v: {0: t} for v, t in tangents.items()})
        self.width = width
        self.sums: set[Atom] = set()  # tangents that are accumulators, with what was added to them

    def take(self, wanted: Sequence[tuple[Var, int]], atoms: Sequence[Atom]) -> None:
        super().take(wanted, atoms)
        self.sums.update(a for _, a in zip(wanted, atoms) if type_of(a).rank == 1)  # type: ignore[union-attr]

    def each(self, element: Callable[[Atom], Atom], name: str) -> Atom:
        """An array over the directions."""
        return self.b.loop(self.width, (), lambda d: ((), (element(d),)), [name], "d", soft=True)[0]

    def tangent_or_zero(self, a: Atom, d: int) -> Atom:
        found = self.dots(a).get(d)
        if found is not None:
            return found
        t = type_of(self.atom(a))
        made = Arr(REAL, (*(t.dims if isinstance(t, Arr) else ()), self.width))
        return self.b.undef(made) if self.never_read(self.atom(a)) else self.b.zeros(made)

    def prim_tangents(self, bind: Bind) -> dict[int, Atom]:
        op, var = bind.op, bind.vars[0]
        assert type(op) is Prim
        b, row = self.b, PRIMITIVES.get(op.name)
        if op.name == "select":  # of numbers: arrays are chosen by branches
            c, (x, y) = self.atom(op.args[0]), (self.tangent_or_zero(a, 0) for a in op.args[1:])
            return {0: self.each(lambda d: b.select(c, b.get(x, d), b.get(y, d)), tangent(var.name))}
        if row is None:
            return super().prim_tangents(bind)
        partials = Partials(b, row, self.atoms(op.args), self.here[var], self.resting.steep(bind, 0))
        moving = [(k, self.dots(a)[0]) for k, a in enumerate(op.args) if self.dots(a)]
        if not moving:
            return {}
        name = tangent(var.name)
        if op.name == "+" and len(moving) == 2:
            for (_, total), (_, x) in (moving, moving[::-1]):
                if total in self.sums:  # added to in place
                    return {0: self.added(total, x, name)}
        return {0: self.each(lambda d: partials.combine([(k, b.get(x, d)) for k, x in moving], name, var.given), name)}

    def added(self, total: Atom, x: Atom, name: str) -> Atom:
        b = self.b

        def body(d: Atom, total: Atom):
            return [b.add_at(total, [d], b.get(x, d), name)], ()

        (made,) = b.loop(self.width, [total], body, [name], "d", [name], soft=True)
        self.sums.add(made)
        return made


def can_be_wide(block: Block) -> bool:
    """Whether a block has nothing that ``Wide`` does not know: calls, data, iterations without a count, rules."""
    for bind in all_binds(block):
        op = bind.op
        row = PRIMITIVES.get(op.name) if type(op) is Prim else None
        if type(op) not in (Prim, If, Loop, Check) or row is not None and (row.jvp is not None or row.vjp is not None):
            return False
        if row is None and type(op) is Prim and op.name not in LINEAR:
            return False
    return True


#: The operations on arrays whose tangents are the same operations.
LINEAR = frozenset({"get", "array", "select", "update", "add-at", "zeros", "undef"})


def wide_jvp(
    b: Builder, block: Block, here: dict[Var, Atom], tangents: dict[Var, Atom], width: Atom
) -> tuple[tuple[Atom, ...], list[Atom]]:
    """``jvp`` along ``width`` directions at once: the results, and their tangents with the directions last."""
    pass_ = Wide(b, tangents, width)
    pass_.here.update(here)
    activity(block, pass_.active, pass_.reach)
    pass_.resting = Resting(block, pass_.active)
    results = pass_.block(block)
    return results, [pass_.tangent_or_zero(r, 0) for r in block.results]


def derivative(b: Builder, f: Function, bits: tuple[int, ...]) -> tuple[Function, list[tuple[int, int]]]:
    """``ḟ`` for arguments with tangents in the directions ``bits``, and which (result, direction) the tangents among
    its results are. It takes ``f``'s arguments, then the tangents, by argument and direction."""
    key = ("dot", f, bits)
    if key in b.memo:
        return b.memo[key]
    through = reach_of(f, b.memo.setdefault(("reach",), {}))
    table: dict[Atom, Atom] = {}
    params = copied(f.params, table)
    tangents = {
        p: {d: like(b, p, table, tangent(p.name)) for d in range(n.bit_length()) if n >> d & 1}
        for p, n in zip(f.params, bits)
        if n
    }
    results = copied(f.results, table)
    wanted = []
    for k, (r, mask) in enumerate(zip(f.results, through)):
        moved = union(n for j, n in enumerate(bits) if mask >> j & 1) if differentiable(r.type) else 0
        wanted += [(k, d) for d in range(moved.bit_length()) if moved >> d & 1]
    dots = [like(b, f.results[k], table, tangent(f.results[k].name)) for k, _ in wanted]
    made = Function(
        f"{f.name}-dot",
        (*params, *(t for ts in tangents.values() for t in ts.values())),
        (*results, *dots),
        None,
        f.span,
    )
    b.memo[key] = made, wanted

    def body() -> Sequence[Atom]:
        block = prepared(b, f)
        pass_ = Forward(b, tangents)
        pass_.here.update(zip(f.params, params))
        activity(block, pass_.active, pass_.reach)
        pass_.resting = Resting(block, pass_.active, f.params)
        values = pass_.block(block)
        return [*values, *(pass_.tangent_or_zero(block.results[k], d) for k, d in wanted)]

    fill_body(b, made, body)
    return made, wanted
