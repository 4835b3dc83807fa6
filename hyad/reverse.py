"""Reverse mode, there and back: one clause per core form (Lantern Fig. 10, the record encoding).

    ∂(let y = e in r)  =  let y = e;  [hole: the rest, there and back];  x̄ += ȳ ∂e/∂x

A clause emits its forward code at once and hands back a function that emits its backward code; the hole between
them is the rest of the block. Continuations are static here, so a block of any length is a list of such functions
and not a nest of calls.

What the backward code remembers: in straight-line code every value is still in scope. A loop's backward iteration
computes the body again from the accumulators that it started with, which the forward loop stacks (a pure sum needs
none, so its forward loop vanishes from a gradient), and finds the costly values of the body in a record that the
forward loop stacked too. A branch's backward code likewise takes the costly values from the forward ``If``, which
returns them beside its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .activity import activity, differentiable
from .builder import ONE, ZERO, Builder, Rebuild, is_zero, type_of
from .core import INT, REAL, Arr, Atom, Bind, Block, Const, If, Loop, Prim, Scalar, Var, atoms_of, blocks_of, free_vars
from .names import adjoint
from .partials import Partials
from .primitives import PRIMITIVES

Back = Callable[[], None]
COSTLY = 8  # in additions: from here on a loop remembers a value, below it is computed again
COSTLY_BRANCH = 4  # the same for a branch, which remembers in registers


def vjp(
    b: Builder,
    block: Block,
    here: dict[Var, Atom],
    cotangents: Callable[[Sequence[Atom]], Sequence[Atom | None]],
    wrt: Sequence[Var],
    factor: bool = False,
) -> tuple[tuple[Atom, ...], list[Atom]]:
    """Emit ``block`` and the adjoints of its variables ``wrt`` into the open scope.

    ``here`` says what the block's parameters are there; ``cotangents`` gives the results' (None: zero), from the
    emitted results. Returns the results and the adjoints, zero where nothing depends on the variable. ``factor``
    keeps the cotangent of a sum as a factor outside the sum's own gradient (see ``Reverse.factor``).
    """
    pass_ = Reverse(b, factor)
    pass_.here.update(here)
    pass_.active = activity(block, {v: 1 for v in wrt})
    results, back = pass_.there(block)
    for r, ct in zip(block.results, cotangents(results)):
        if ct is not None:
            pass_.contribute(r, ct)
    back()
    adjoints = []
    for v in wrt:
        pass_.settle(v)
        found = pass_.bar.get(v)
        adjoints.append(found if found is not None else b.zeros(type_of(pass_.atom(v))))
    return results, adjoints


class Reverse(Rebuild):
    """``bar`` maps an active variable of the old program to its adjoint so far.

    ``factor``: the gradient of a sum ``s = (fold + ..)`` is built for cotangent 1 and scaled by ``s̄`` afterwards, and
    an array's adjoint may wait in ``scaled`` as (factor, array). It costs a pass over the array, and pays when the
    gradient is differentiated again along many directions: the sum's own gradient then does not depend on ``s̄``, so
    that a Hessian's rows share it.
    """

    def __init__(self, builder: Builder, factor: bool = False) -> None:
        super().__init__(builder)
        self.factor = factor
        self.scaled: dict[Var, tuple[Atom, Atom]] = {}
        self.top = len(builder.scopes)
        self.active: dict[Var, int] = {}
        self.bar: dict[Var, Atom] = {}
        self.backs: list[Back] = []

    def is_active(self, a: Atom) -> bool:
        return type(a) is Var and a in self.active

    def contribute(self, a: Atom, x: Atom) -> None:
        """``ā += x``."""
        if type(a) is not Var or a not in self.active or is_zero(x):
            return
        self.settle(a)
        sofar = self.bar.get(a)
        if sofar is None:
            self.bar[a] = x
        elif isinstance(type_of(sofar), Scalar):
            self.bar[a] = self.b.prim("+", sofar, x, hint=adjoint(a.name), given=a.given)
        else:
            self.bar[a] = self.b.add(sofar, x)

    def contribute_at(self, a: Atom, indices: Sequence[Atom], x: Atom) -> None:
        """``ā[i] += x``, in place."""
        if not self.is_active(a) or is_zero(x):
            return
        self.settle(a)
        sofar = self.bar.get(a)
        if sofar is None:
            sofar = self.b.zeros(type_of(self.atom(a)), adjoint(a.name))
        self.bar[a] = self.b.add_at(sofar, indices, x, adjoint(a.name))

    def contribute_scaled(self, a: Var, factor: Atom, x: Atom) -> None:
        """``ā += factor x``."""
        if isinstance(type_of(x), Scalar):
            self.contribute(a, self.b.prim("*", factor, x))
        elif a not in self.bar and a not in self.scaled:
            self.scaled[a] = (factor, x)
        else:
            self.contribute(a, self.product(factor, x))

    def product(self, factor: Atom, x: Atom) -> Atom:
        return self.b.elementwise(lambda f, y: self.b.prim("*", f, y), factor, x)

    def settle(self, a: Var) -> None:
        """Carry out a scaling that waits."""
        found = self.scaled.pop(a, None)
        if found is not None:
            self.bar[a] = self.product(*found)

    # ------------------------------------------------------------------------------- there ... and back

    def there(self, block: Block, record: dict[Var, Atom] | None = None) -> tuple[tuple[Atom, ...], Back]:
        """Emit the forward code of a block; the results, and what emits the backward code. Values in ``record``
        are remembered and not computed again."""
        outer, self.backs = self.backs, []
        for bind in block.binds:
            self.b.span = bind.span
            if record and bind.vars and bind.vars[0] in record:
                self.here[bind.vars[0]] = record[bind.vars[0]]
                self.b.remember(bind.op.name, self.atoms(bind.op.args), record[bind.vars[0]])  # type: ignore[union-attr]
                if any(self.is_active(v) for v in bind.vars):
                    self.backs.append(self.prim_back(bind.op, bind))  # type: ignore[arg-type]
            else:
                self.bind(bind)
        backs, self.backs = self.backs, outer

        def back() -> None:
            for emit in reversed(backs):
                emit()

        return self.atoms(block.results), back

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if not any(self.is_active(v) for v in bind.vars):
            self.copy(bind)
        elif type(op) is Prim:
            self.copy(bind)
            self.backs.append(self.prim_back(op, bind))
        elif type(op) is If:
            self.backs.append(self.if_there(op, bind))
        else:
            assert type(op) is Loop
            self.backs.append(self.loop_there(op, bind))

    def take(self, v: Var) -> Atom | None:
        """The finished adjoint of a variable whose binding is being left, going back."""
        self.settle(v)
        return self.bar.pop(v, None)

    # y = p(x ...)  =>  x̄ += ȳ ∂p/∂x
    def prim_back(self, op: Prim, bind: Bind) -> Back:
        b, (var,) = self.b, bind.vars
        args, y = self.atoms(op.args), self.here[var]

        def back() -> None:
            y_bar = self.take(var)
            if y_bar is None:
                return
            b.span = bind.span
            row = PRIMITIVES.get(op.name)
            if row is not None:
                if row.jvp is not None or row.vjp is not None:
                    from .derive import custom_adjoints

                    for a, x in zip(op.args, custom_adjoints(b, row, args, y, y_bar)):
                        self.contribute(a, x)
                    return
                partials = Partials(b, row, args, y)
                for k, a in enumerate(op.args):
                    if self.is_active(a):
                        self.contribute(a, partials.product(y_bar, k, adjoint(a.name)))
            elif op.name == "get":
                self.contribute_at(op.args[0], args[1:], y_bar)
            elif op.name == "array":
                for k, a in enumerate(op.args):
                    if self.is_active(a):
                        self.contribute(a, b.get(y_bar, Const(k, INT)))
            elif op.name == "select":
                zero = b.zeros(type_of(y))
                self.contribute(op.args[1], b.select(args[0], y_bar, zero))
                self.contribute(op.args[2], b.select(args[0], zero, y_bar))
            elif op.name in ("update", "add-at"):
                base, *_, x = op.args
                if self.is_active(x):
                    self.contribute(x, b.get(y_bar, *args[1:-1]))
                if op.name == "update" and self.is_active(base):
                    y_bar = b.update(y_bar, args[1:-1], b.zeros(type_of(args[-1])))
                self.contribute(base, y_bar)

        return back

    # y = (if c e f)  =>  (x̄ ...) = (if c [e there and back] [f there and back])
    def if_there(self, op: If, bind: Bind) -> Back:
        b, cond, span = self.b, self.atom(op.cond), bind.span
        kept = [costly(block, self.active, COSTLY_BRANCH) for block in (op.then, op.orelse)]
        regions = []
        for k, block in enumerate((op.then, op.orelse)):
            with b.region() as scope:
                scope.facts.extend(b.facts_of(cond, k == 0))
                results = self.block_there(block)
                record = [self.here[v] if j == k else ZERO for j in (0, 1) for v in kept[j]]
            regions.append((scope, [*results, *record]))
        b.span = span
        out = b.if_(cond, *regions, names=[v.name for v in (*bind.vars, *kept[0], *kept[1])], given=bind.vars[0].given)
        self.define(bind, out)
        saved = dict(zip([*kept[0], *kept[1]], out[len(bind.vars) :]))

        def back() -> None:
            bars = [self.take(v) for v in bind.vars]
            if all(x is None for x in bars):
                return
            touched = [v for v in {**free_vars(op.then), **free_vars(op.orelse)} if v in self.active]
            touched = [v for v in touched if differentiable(v.type)]
            for v in touched:
                self.settle(v)
            before = {v: self.bar.get(v) for v in touched}
            b.span = span
            start = {
                v: x if x is not None else b.zeros(type_of(self.atom(v)), adjoint(v.name)) for v, x in before.items()
            }
            regions = []
            for k, block in enumerate((op.then, op.orelse)):
                with b.region() as scope:
                    scope.facts.extend(b.facts_of(cond, k == 0))
                    _, inner_back = self.there(block, {v: saved[v] for v in kept[k]})
                    self.bar.update(start)
                    for r, x in zip(block.results, bars):
                        if x is not None:
                            self.contribute(r, x)
                    inner_back()
                    regions.append((scope, [self.bar[v] for v in touched]))
            b.span = span
            changed = [j for j, v in enumerate(touched) if any(region[1][j] is not start[v] for region in regions)]
            after = b.if_(
                cond,
                *[(scope, [results[j] for j in changed]) for scope, results in regions],
                names=[adjoint(touched[j].name) for j in changed],
            )
            for v in touched:
                if before[v] is None:
                    self.bar.pop(v, None)
                else:
                    self.bar[v] = before[v]  # type: ignore[assignment]
            for j, x in zip(changed, after):
                self.bar[touched[j]] = x

        return back

    def block_there(self, block: Block) -> tuple[Atom, ...]:
        """The forward code alone: its backward code is emitted elsewhere, from what is remembered."""
        results, _ = self.there(block)
        return results

    # s = (ifold f z n)  =>  the iterations again, last to first, each there and back
    def loop_there(self, op: Loop, bind: Bind) -> Back:
        b, span, width = self.b, bind.span, len(op.accs)
        sums = [sum_like(op.body, a, r) or not self.is_active(a) for a, r in zip(op.accs, op.body.results)]
        carried = not all(sums)
        kept = costly(op.body, self.active) if carried else []
        count, inits = self.atom(op.count), self.atoms(op.inits)

        def forward(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = self.block_there(op.body)
            return results[:width], [*results[width:], *accs, *(self.here[v] for v in kept)]

        names = [*(v.name for v in bind.vars), *(a.name for a in op.accs), *(v.name for v in kept)]
        acc_names = [a.name for a in op.accs]
        out = b.loop(count, inits, forward, names, op.index.name, acc_names, bind.vars[0].given)
        self.define(bind, out)
        at_start = dict(zip(op.accs, out[len(bind.vars) :]))
        saved = dict(zip(kept, out[len(bind.vars) + width :]))

        def back() -> None:
            scale = None if carried else self.common_factor(bind, width)
            bars = [self.take(v) for v in bind.vars]
            if all(x is None for x in bars):
                return
            b.span = span
            if scale is not None:
                factor, k, unscaled = scale
                bars[k] = unscaled
            moving = [k for k in range(width) if self.is_active(op.accs[k])]
            own = {op.index, *op.accs}
            outside = [v for v in free_vars(op.body) if v in self.active and v not in own and differentiable(v.type)]
            if scale is None:
                for v in outside:
                    self.settle(v)
            held = {v: self.scaled.pop(v) for v in outside if v in self.scaled}
            kept_bars = {v: self.bar.get(v) for v in outside}
            before = kept_bars if scale is None else dict.fromkeys(outside)
            acc_types = [type_of(a) for a in inits]
            final = {k: bars[k] if bars[k] is not None else b.zeros(acc_types[k]) for k in moving}
            going = [k for k in moving if not sums[k] or carried]
            starts = [
                *(final[k] for k in going),
                *(
                    before[v] if before[v] is not None else b.zeros(type_of(self.atom(v)), adjoint(v.name))
                    for v in outside
                ),
            ]

            def backward(k: Atom, *accs: Atom):
                i = b.prim("-", b.prim("-", count, Const(1, INT)), k) if carried else k
                self.here[op.index] = i
                for a in op.accs:
                    self.here[a] = b.get(at_start[a], i, hint=a.name, given=True)
                record = {v: b.get(saved[v], i, hint=v.name, given=v.given) for v in kept}
                _, inner_back = self.there(op.body, record)
                for a in op.accs:
                    self.bar.pop(a, None)
                self.bar.update(zip(outside, accs[len(going) :]))
                going_in = dict(zip(going, accs))
                for j in moving:
                    self.contribute(op.body.results[j], going_in.get(j, final[j]))
                for r, y_bar in zip(op.body.results[width:], bars[width:]):
                    if y_bar is not None:
                        self.contribute(r, b.get(y_bar, i))
                inner_back()
                following = []
                for j in going:
                    found = self.bar.get(op.accs[j])
                    following.append(found if found is not None else b.zeros(acc_types[j]))
                return [*following, *(self.bar[v] for v in outside)], ()

            names = [adjoint(op.accs[j].name) for j in going] + [adjoint(v.name) for v in outside]
            out = b.loop(count, starts, backward, names, "k" if carried else op.index.name, names)
            b.span = span
            for v in outside:
                self.bar.pop(v, None)
                if scale is not None and kept_bars[v] is not None:
                    self.bar[v] = kept_bars[v]  # type: ignore[assignment]
            self.scaled.update(held)
            for a in op.accs:
                self.bar.pop(a, None)
            for v, x in zip(outside, out[len(going) :]):
                if scale is not None:
                    self.contribute_scaled(v, factor, x)
                else:
                    self.bar[v] = x
            result_of = dict(zip(going, out))
            for j in moving:
                x = result_of.get(j, final[j])
                if scale is None:
                    self.contribute(op.inits[j], x)
                elif type(op.inits[j]) is Var and self.is_active(op.inits[j]):
                    self.contribute_scaled(op.inits[j], factor, x)

        return back

    def common_factor(self, bind: Bind, width: int) -> tuple[Atom, int, Atom] | None:
        """Where factors are kept and one result alone of a loop has an adjoint: its factor, which result it is, and
        the adjoint without the factor."""
        if not self.factor or len(self.b.scopes) != self.top:
            return None
        having = [k for k, v in enumerate(bind.vars) if v in self.bar or v in self.scaled]
        if len(having) != 1:
            return None
        (k,) = having
        v = bind.vars[k]
        if v in self.scaled:
            factor, x = self.scaled.pop(v)
            self.bar[v] = x
            return factor, k, x
        if k < width and isinstance(v.type, Scalar) and self.bar[v] is not ONE:
            return self.bar[v], k, ONE
        return None


def costly(block: Block, active: dict[Var, int], least: int = COSTLY) -> list[Var]:
    """The scalars bound at the top of a block that cost more to compute than to remember."""
    found = []
    for bind in block.binds:
        if type(bind.op) is Prim and bind.op.name in PRIMITIVES and bind.vars[0].type == REAL:
            row = PRIMITIVES[bind.op.name]
            if row.cost >= least and bind.vars[0] in active:
                found.append(bind.vars[0])
    return found


def sum_like(block: Block, acc: Var, result: Atom) -> bool:
    """Whether an iteration only adds to an accumulator: ``acc' = acc + e`` with no other use of ``acc``. The
    adjoint of such an accumulator is the same in every iteration, and their order does not matter."""
    if count_uses(block, acc) > 1:
        return False
    definitions = {v: (bind, k) for bind in block.binds for k, v in enumerate(bind.vars)}
    while result is not acc:
        found = definitions.get(result) if type(result) is Var else None
        if found is None:
            return False
        bind, k = found
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-", "add-at"):
            chain = op.args[:1] if op.name != "+" else op.args
            following = next((a for a in chain if a is acc or reaches(definitions, a, acc)), None)
        elif type(op) is Loop and k < len(op.accs) and sum_like(op.body, op.accs[k], op.body.results[k]):
            following = op.inits[k]
        else:
            return False
        if following is None or count_uses(block, result) > 1 and type(result) is Var:
            return False
        result = following
    return True


def reaches(definitions: dict, atom: Atom, acc: Var) -> bool:
    """Whether ``atom`` is ``acc`` with things added."""
    while type(atom) is Var and atom is not acc:
        found = definitions.get(atom)
        if found is None:
            return False
        bind, k = found
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-", "add-at"):
            nexts = [a for a in (op.args if op.name == "+" else op.args[:1]) if a is acc]
            if nexts:
                return True
            nexts = [a for a in (op.args if op.name == "+" else op.args[:1]) if type(a) is Var and a in definitions]
            if len(nexts) != 1:
                return any(reaches(definitions, a, acc) for a in nexts)
            atom = nexts[0]
        elif type(op) is Loop and k < len(op.accs):
            atom = op.inits[k]
        else:
            return False
    return atom is acc


def count_uses(block: Block, var: Var) -> int:
    """How often a block and its regions read ``var``."""
    total = sum(r is var for r in block.results)
    for bind in block.binds:
        total += sum(a is var for a in atoms_of(bind.op))
        for inner in blocks_of(bind.op):
            total += count_uses(inner, var)
        for v in bind.vars:
            if isinstance(v.type, Arr):
                total += sum(d is var for d in v.type.dims)
    return total
