"""Reverse mode, there and back: one clause per core form (Lantern Fig. 10, the record encoding).

    ∂(let y = e in r)  =  let y = e;  [hole: the rest, there and back];  x̄ += ȳ ∂e/∂x

A clause emits its forward code at once and hands back a function that emits its backward code; the hole between
them is the rest of the block. Continuations are static here, so a block of any length is a list of such functions
and not a nest of calls.

What the backward code remembers: in straight-line code every value is still in scope. A loop's backward iteration
computes the body again from the accumulators that it started with, which the forward loop stacks (a pure sum needs
none, so its forward loop vanishes from a gradient), and finds the costly values of the body in a record that the
forward loop stacked too. A branch's backward code likewise takes the costly values from the forward ``If``, which
returns them beside its results. A loop with ``:checkpoint n`` remembers n of its states (see ``checkpoint``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..core import (
    INT,
    REAL,
    ROW,
    ZERO,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    If,
    Loop,
    Make,
    Prim,
    Scalar,
    Type,
    Var,
    While,
    all_binds,
    blocks_of,
    free_vars,
    type_of,
)
from ..program.affine import affine_add
from ..program.bounds import Scope
from ..program.builder import Builder
from ..program.names import adjoint
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild
from ..program.sink import reads_first
from .activity import activity, differentiable
from .adjoints import add, add_at, pack, unpack, vanishes, zero
from .backpropagators import Back
from .left_out import LeftOut
from .partials import Partials
from .records import calls
from .reverse_branches import arm_there, branch_there, choice_there, know
from .reverse_functions import apply_there
from .reverse_loops import carries, checkpointed_there, few, heavy, iterations_there, loop_there
from .rooms import rooms

NOTHING_LEFT_OUT = LeftOut(Block((), ()), ())


def vjp(
    b: Builder,
    block: Block,
    here: dict[Var, Atom],
    cotangents: Callable[[Sequence[Atom]], Sequence[Atom | None]],
    wrt: Sequence[Var],
    factor: bool = False,
    encoding: str = "record",
) -> tuple[tuple[Atom, ...], list[Atom]]:
    """Emit ``block`` and the adjoints of its variables ``wrt`` into the open scope.

    ``here`` says what the block's parameters are there; ``cotangents`` gives the results' (None: zero), from the
    emitted results. Returns the results and the adjoints, zero where nothing depends on the variable. ``factor``
    keeps the cotangent of a sum as a factor outside the sum's own gradient (see ``Reverse.factor``). ``encoding`` is
    what stands between forward and backward code: "record" or "closure" (see ``Reverse``), or "continuation" (see
    ``continuations``).
    """
    if encoding == "continuation":
        from . import continuations

        return continuations.vjp(b, block, here, cotangents, wrt, factor)
    pass_ = Reverse(b, factor and encoding == "record", encoding)
    pass_.here.update(here)
    pass_.active = activity(block, {v: 1 for v in wrt}, pass_.reach)
    pass_.left_out = LeftOut(block, pass_.active)
    results, back = pass_.there(block)
    cts = cotangents(results)
    with b.differentiating():
        for r, ct in zip(block.results, cts):
            if ct is not None:
                pass_.contribute(r, ct)
        back()
        adjoints = []
        for v in wrt:
            pass_.settle(v)
            found = pass_.bar.get(v)
            adjoints.append(found if found is not None else zero(b, pass_.atom(v)))
    return results, adjoints


class Reverse(Rebuild):
    """``bar`` maps an active variable of the old program to its adjoint so far.

    ``factor``: the gradient of a sum ``s = (fold + ..)`` is built for cotangent 1 and scaled by ``s̄`` afterwards, and
    an array's adjoint may wait in ``scaled`` as (factor, array). It costs a pass over the array, and pays when the
    gradient is differentiated again along many directions: the sum's own gradient then does not depend on ``s̄``, so
    that a Hessian's rows share it.

    ``encoding``: "record", or "closure": each branch, iteration and call gives a backpropagator beside its results, a
    function of the cotangents alone that has captured what it reads (Pearlmutter & Siskind 2008; Myia). It is closure
    converted: a data type with a constructor for each function, which holds what that has captured, and a function
    that applies it. Design decision: one transformation; a record is such a closure that leaves out what its one
    caller still has, and whose code stands where it is called (Lantern 3.5).
    """

    def __init__(self, builder: Builder, factor: bool = False, encoding: str = "record") -> None:
        super().__init__(builder)
        self.factor, self.closures = factor, encoding == "closure"
        self.scaled: dict[Var, tuple[Atom, Atom]] = {}
        self.top = len(builder.scopes)
        self.active: dict[Var, int] = {}
        self.bar: dict[Var, Atom] = {}
        self.left_out = NOTHING_LEFT_OUT
        self.backs: list[Back] = []
        self.apart = False  # whether the backward code of what is being emitted comes in another place
        self.again = False  # whether what is being emitted has run before
        self.stacks: dict[Var, Atom] = {}  # what is remembered of a loop's results, as its code is emitted again
        self.records: set[Data] = set()
        self.tables: set[Var] = set()  # arrays of which the elements that are read are remembered
        self.rooms: dict[Loop, Atom] = {}  # of loops that run as often as the iteration around them says
        self.known: dict[Var, Atom] = {}  # those that a branch within a branch has read
        self.reach = builder.memo.setdefault(("reach",), {})

    def anew(self) -> Reverse:
        """A pass of the same encoding, for a function of its own."""
        return Reverse(self.b, encoding="closure" if self.closures else "record")

    def is_active(self, a: Atom) -> bool:
        """Whether an adjoint of it is wanted."""
        return type(a) is Var and a in self.active

    def contribute(self, a: Atom, x: Atom) -> None:
        """``ā += x``."""
        if type(a) is not Var or a not in self.active or vanishes(self.b, x):
            return
        self.settle(a)
        sofar = self.bar.get(a)
        if sofar is None:
            self.bar[a] = x
        elif isinstance(type_of(sofar), Scalar):
            self.bar[a] = self.b.prim("+", sofar, x, hint=adjoint(a.name), given=a.given)
        else:
            self.bar[a] = add(self.b, sofar, x)

    def contribute_at(self, a: Atom, indices: Sequence[Atom], x: Atom) -> None:
        """``ā[i] += x``, in place."""
        if not self.is_active(a) or vanishes(self.b, x):
            return
        self.settle(a)
        sofar = self.bar.get(a)
        if sofar is None:
            sofar = zero(self.b, self.atom(a), adjoint(a.name))
        self.bar[a] = add_at(self.b, sofar, indices, x, adjoint(a.name))

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

    def there(
        self, block: Block, record: dict[Var, Atom] | None = None, apart: bool = False, again: bool = False
    ) -> tuple[tuple[Atom, ...], Back]:
        """Emit the forward code of a block; the results, and what emits the backward code. Values in ``record``
        are remembered and not computed again. ``apart``: the backward code is cut off, or not wanted. ``again``: the
        block has run before, on the same values, and so its checks have been made."""
        outer, self.backs = self.backs, []
        around, self.apart = self.apart, apart
        before, self.again = self.again, self.again or again
        soft = self.b.soft
        for bind in reads_first(block.binds):
            self.b.span, self.b.soft = bind.span, bind.soft
            if record and bind.vars and type(bind.op) is Loop:
                self.stacks = {v: record[v] for v in bind.vars if v in record}
                self.bind(bind)  # what is remembered is not read of it, and then not computed
                self.stacks = {}
                self.here.update((v, record[v]) for v in bind.vars if v in record)
            elif record and type(bind.op) is If:
                know(self, bind, record)
                self.bind(bind)
            elif record and bind.vars and bind.vars[0] in record:
                self.here[bind.vars[0]] = record[bind.vars[0]]
                self.b.remember(bind.op.name, self.atoms(bind.op.args), record[bind.vars[0]])  # type: ignore[union-attr]
                if any(self.is_active(v) for v in bind.vars):
                    self.backs.append(self.prim_back(bind.op, bind))  # type: ignore[arg-type]
            else:
                self.bind(bind)
        backs, self.backs = self.backs, outer
        self.apart, self.again, self.b.soft = around, before, soft

        def back() -> None:
            for emit in reversed(backs):
                emit()

        return self.atoms(block.results), back

    def bind(self, bind: Bind) -> None:
        op, b = bind.op, self.b
        if type(op) is Check and self.again:
            b.check(op, self.atom(op.a), self.atom(op.b), made=True)
        elif not any(self.is_active(v) for v in bind.vars):
            self.copy(bind)
        elif type(op) is Prim:
            self.copy(bind)
            self.backs.append(self.prim_back(op, bind))
        elif type(op) is Make:
            self.copy(bind)
            self.backs.append(self.make_back(op, bind))
        elif type(op) is Apply:
            self.backs.append(apply_there(self, op, bind))
        elif few(self, op) and (type(op) is While or carries(self, op) or calls(op)):  # type: ignore[arg-type]
            self.backs.append(checkpointed_there(self, op, bind))  # type: ignore[arg-type]
        elif type(op) is While or (type(op) is Loop and (calls(op) or self.closures or heavy(self, op))):
            self.backs.append(iterations_there(self, op, bind))
        elif type(op) is Loop:
            self.backs.append(loop_there(self, op, bind))
        elif type(op) is Case and type(value := self.atom(op.value)) is Var and value in b.made and not b.plain:
            self.backs.append(arm_there(self, op, bind, b.made[value]))
        elif self.closures or any(
            type(inner.op) in (Apply, While) for block in blocks_of(op) for inner in all_binds(block)
        ):
            self.backs.append(choice_there(self, op, bind))
        else:
            self.backs.append(branch_there(self, op, bind))

    @property
    def remembers(self) -> bool:
        """Whether what costs more to compute again than to remember is remembered."""
        return "remembering" not in self.b.off

    def say(self, binds: Sequence[Bind], kept: Sequence[Var]) -> None:
        """That these are remembered, for who asks."""
        if self.b.journal is not None:
            span = self.b.span
            for bind in binds:
                if any(v in kept for v in bind.vars):
                    self.b.span = bind.span
                    self.b.fired("remembering")
            self.b.span = span

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
                    from .own_rules import custom_adjoints

                    for a, x in zip(op.args, custom_adjoints(b, row, args, y, y_bar)):
                        self.contribute(a, x)
                    return
                partials = Partials(b, row, args, y, self.left_out.guarded(row, bind))
                for k, a in enumerate(op.args):
                    if self.is_active(a):
                        self.contribute(a, partials.product(y_bar, k, adjoint(a.name)))
            elif op.name in b.rules:
                rule = b.rules[op.name]
                for a, x in zip(op.args[1:], rule.adjoints(args[1:], y, y_bar)):
                    self.contribute(a, x)
            elif op.name == "get":
                self.contribute_at(op.args[0], args[1:], y_bar)
            elif op.name == "array":
                for k, a in enumerate(op.args):
                    if self.is_active(a):
                        self.contribute(a, b.get(y_bar, Const(k, INT)))
            elif op.name == "select":
                nothing = b.zeros(type_of(y))
                self.contribute(op.args[1], b.select(args[0], y_bar, nothing))
                self.contribute(op.args[2], b.select(args[0], nothing, y_bar))
            elif op.name in ("update", "add-at"):
                base, *_, x = op.args
                places = elements_at(args[1:-1], type_of(args[-1]))
                if self.is_active(x):
                    items = [b.get(y_bar, *place) for place in places]
                    self.contribute(x, b.array(items) if items else b.get(y_bar, *args[1:-1]))
                if op.name == "update" and self.is_active(base):
                    for place in places:
                        y_bar = b.update(y_bar, place, ZERO)
                    if not places:
                        y_bar = b.update(y_bar, args[1:-1], zero(b, args[-1]))
                self.contribute(base, y_bar)

        return back

    # y = (C x ...)  =>  x̄ += the fields of ȳ
    def make_back(self, op: Make, bind: Bind) -> Back:
        b, (var,), args = self.b, bind.vars, self.atoms(op.args)

        def back() -> None:
            y_bar = self.take(var)
            if y_bar is not None:
                b.span = bind.span
                for k, x in unpack(b, op.constructor, y_bar, args).items():
                    self.contribute(op.args[k], x)

        return back

    @contextmanager
    def with_rooms(self, op: Loop) -> Iterator[None]:
        """While the forward code of a loop is emitted: how much room what loops inside of it remember needs."""
        around, b = self.rooms, self.b
        found = {} if self.closures else rooms(op) or {}
        new = {}
        for loop, most in found.items():
            if loop not in around:
                size = self.moved(most)
                one_more = affine_add(size, (1, {}))
                fits = size if b.nonnegative(size) or not b.nonnegative(one_more) else one_more
                new[loop] = b.trips(b.affine_value(fits))
        self.rooms = {**around, **new}
        yield
        self.rooms = around

    @contextmanager
    def region(self, op: If | Case, k: int) -> Iterator[tuple[Scope, tuple[Var, ...]]]:
        """A branch or an arm under construction, and an arm's fields in it."""
        if type(op) is If:
            with self.b.branch_region(self.atom(op.cond), k == 0) as scope:
                yield scope, ()
        else:
            arm = op.arms[k]  # type: ignore[union-attr]
            with self.b.arm(arm.constructor) as (scope, fields):
                self.here.update(zip(arm.fields, fields))
                for f in arm.fields:
                    self.bar.pop(f, None)
                yield scope, fields

    def join(
        self,
        op: If | Case,
        choice: Atom,
        regions: Sequence[tuple[tuple[Var, ...], Scope, Sequence[Atom]]],
        names: Sequence[str],
        given: bool = False,
        known: Sequence[Type] = (),
    ) -> Sequence[Atom]:
        """The choice between finished regions, as ``op`` chooses; ``known``: as ``Builder.case`` has it."""
        if type(op) is If:
            first, second = [(scope, results) for _, scope, results in regions]
            return self.b.if_(choice, first, second, names, given)
        arms = [(arm.constructor, *region) for arm, region in zip(op.arms, regions)]  # type: ignore[union-attr]
        return self.b.case(choice, arms, names, given, known)  # type: ignore[arg-type]

    def touched(self, op: If | Case | Loop | While) -> list[Var]:
        """The active variables of the blocks around that the regions of an operation read."""
        blocks = blocks_of(op)[1:] if type(op) is While else blocks_of(op)
        own = set(getattr(op, "accs", ()))
        found: dict[Var, None] = {}
        if type(op) is Case:
            own = {f for arm in op.arms for f in arm.fields}
            if self.is_active(op.value):
                found[op.value] = None  # type: ignore[index]
        for block in blocks:
            found.update(dict.fromkeys(v for v in free_vars(block) if v in self.active and v not in own))
        return [v for v in found if differentiable(v.type)]

    def give_back(self, op: If | Case, k: int) -> None:
        """At the end of an arm's backward code: the fields' adjoints make one of the value's."""
        if type(op) is Case and self.is_active(op.value):
            arm = op.arms[k]
            bars = {j: self.take(f) for j, f in enumerate(arm.fields)}
            parts = {j: x for j, x in bars.items() if x is not None}
            fields = self.atoms(arm.fields)
            self.contribute(op.value, pack(self.b, arm.constructor, fields, parts, adjoint(str(op.value))))

    # ------------------------------------------------------------------------- forward and backward, cut

    # ------------------------------------------------------------------------------------- closures

    @property
    def kind(self) -> str:
        return "function" if self.closures else "record"

    def so_far(self, v: Var) -> Atom:
        """The adjoint so far, to be threaded through backward code that adds to it."""
        self.settle(v)
        found = self.bar.get(v)
        return found if found is not None else zero(self.b, self.atom(v), adjoint(v.name))

    def or_zero(self, bar: Atom | None, v: Var) -> Atom:
        return bar if bar is not None else zero(self.b, self.atom(v))


def elements_at(place: Sequence[Atom], t: Type) -> list[tuple[Atom, ...]]:
    """Where the elements of a short row are that stands at ``place``; none where it is no such row. Design decision: a
    row of two to four adjoints is as many numbers, which are taken out and cleared one by one; as a row it would be
    copied."""
    if isinstance(t, Arr) and t.rank == 1 and t.elem == REAL and type(t.dims[0]) is Const and t.dims[0].value <= ROW:
        return [(*place, Const(k, INT)) for k in range(t.dims[0].value)]
    return []
