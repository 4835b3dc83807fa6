"""Which adjoints may be 0 because nothing took the value: what a branch or a ``max`` left out.

Its own derivative is then 0, however steep what it was made by is there: but 0 times an infinite slope is NaN. An
adjoint that may have been left out therefore goes through such a slope by ``pass-on``, which gives 0 for 0. Before
differentiation most of what branches leave out has been moved into them (``sink``, ``Branched``), and then needs none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..core import (
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Const,
    If,
    Loop,
    Make,
    Prim,
    Var,
    While,
    all_binds,
    blocks_of,
)
from ..program.primitives import COMPARISONS, PRIMITIVES, Primitive, parse_partial
from .masses import Masses

#: What may give an infinite number, or NaN, for finite ones.
UNBOUNDED = frozenset(
    "/ ** sqrt cbrt exp exp2 expm1 log log2 log10 log1p tan asin acos atan2 sinh cosh acosh atanh gamma lgamma digamma"
    " polygamma".split()
)
#: What tells something of its operands: they have been compared.
ASKING = COMPARISONS | {"min", "max", "relu"}
#: Of what is unbounded or steep what has infinite slopes where it is finite itself.
STEEP_WHERE_FINITE = frozenset("** sqrt cbrt asin acos atan2 acosh".split())
#: What is compared for its slopes there, or for being infinite, as a logarithm is that is held at a lowest value.
COMPARED_ITSELF = STEEP_WHERE_FINITE | frozenset("log log2 log10 log1p atanh lgamma".split())
#: What a condition tells of a number it tells of what that is made of by these.
LINEAR = frozenset("get + - neg abs".split())
#: What has finite slopes at finite numbers, though these are quotients or exponentials.
GENTLE = frozenset("hypot erf erfc atan asinh".split())


class LeftOut:
    """For a block and what is active in it: the active variables whose adjoints may be left out, and the variables that
    may be infinite or NaN though the inputs are finite. Both are empty where no slope can be infinite. ``called``: it
    is the body of a function, and nobody knows what adjoint its results have.

    An adjoint is certain where a result of the block, or of the branch in which the variable is made, depends on it by
    operations that hand on all of it. Inputs are finite, unless the program asks whether they are NaN.

    Design decision: what a program does not ask about it does not leave out for being infinite. A slope counts as
    infinite only where what it is made of, as ``v`` of ``(sqrt v)``, is compared, or the root or logarithm itself:
    ``(let [r (sqrt q)] (if (< r 1) ..))``. Else each payoff ``(if (> s k) ..)`` would have its quotients by a
    volatility guarded. What a condition lets through is finite: ``(if (> d 0) (/ x d) 0.0)`` is. And of the states of
    a loop each is asked about by itself: nothing that the iteration before has compared tells of the next one, unless
    it has remembered an answer.
    """

    def __init__(self, block: Block, active: Collection[Var], called: bool = False) -> None:
        self.unbounded: set[Var] = set()
        self.sizes: set[Var] = set()  # reals that are made of integers, none of them of an array: no slope through them
        self.vars: set[Var] = set()
        self.weightless: set[Var] = set()  # logarithms of sums of exponentials that come into others
        binds = list(all_binds(block))
        self.read = {x.vars[0] for x in binds if type(x.op) is Prim and x.op.name == "get" and x.vars[0].type == INT}
        if not any(type(x.op) is Prim and x.op.name in UNBOUNDED for x in binds) and not any(map(asks, binds)):
            return
        self.compared: set[Atom] = set()  # by a condition, and what that is made of
        self.doubted: set[Atom] = set()  # of which it asks whether it is a number
        self.told: set[Atom] = set()  # what is made of what is compared
        self.compare(binds)
        self.spread(binds)
        self.home: dict[Var, int] = {}
        logarithms = Masses(block).logarithms
        if not logarithms.isdisjoint(active):
            self.settle(block, 0)
            self.weightless = logarithms - (self.needed(block, {"exp"}) if not called else set())
        if not any(type(x.op) is Prim and x.vars[0] in active and self.steep(x) for x in binds):
            return
        self.settle(block, 0)
        self.vars = self.home.keys() & set(active) - self.needed(block)

    def guarded(self, row: Primitive, bind: Bind) -> list[int]:
        """The operands of an operation to which its adjoint, which may be 0, goes by a slope that may be infinite."""
        if bind.vars[0] in self.weightless:
            return [0]
        return [k for k in range(len(row.params)) if self.slope(row, k, bind)] if bind.vars[0] in self.vars else []

    # --------------------------------------------------------------------------------------- what is finite

    def compare(self, binds: Sequence[Bind]) -> None:
        """Find what conditions tell something of."""
        made: dict[Atom, list[Atom]] = {}  # what each is made of, linearly
        handed_back: set[tuple[Atom, Atom]] = set()  # the states of loops that remember no answer, and the next ones
        for x in binds:
            op = x.op
            if type(op) is Prim:
                if op.name in ASKING:
                    self.compared.update(op.args)
                if asks(x) or op.name in ("=", "!="):  # (!= w w) may read w twice
                    self.doubted.update(op.args)
                if op.name in LINEAR or op.name in ("*", "/") and any(type(a) is Const for a in op.args):
                    made[x.vars[0]] = [*op.args[:1]] if op.name == "get" else [*op.args]
            else:
                for given, taken in handed(x):
                    for a, v in zip(given, taken):
                        made.setdefault(v, []).append(a)
                if type(op) is Loop and all(element(a) == REAL for a in op.accs):
                    handed_back.update(zip(op.accs, op.body.results))
        self.makers = {x.vars[0]: x for x in binds if type(x.op) is Prim}
        self.made = {**made, **{v: [*x.op.args] for v, x in self.makers.items() if x.op.name in ("min", "max")}}  # type: ignore
        self.compared, self.doubted = reached(self.compared, made), reached(self.doubted, made)
        for x in binds:
            if type(x.op) is Prim and x.op.name in ("*", "array", "update"):
                made[x.vars[0]] = [*x.op.args]
        self.readers: dict[Atom, list[Atom]] = {}
        for v, sources in made.items():
            for a in sources:
                if (v, a) not in handed_back:
                    self.readers.setdefault(a, []).append(v)
        self.told = self.made_of(self.compared)
        self.told_by_condition: dict[Atom, tuple[set[Atom], set[Atom]]] = {}

    def made_of(self, compared: set[Atom]) -> set[Atom]:
        """What is made of numbers that are compared, and they themselves."""
        return reached({a for a in compared if type(a) is Var and a.type != INT}, self.readers)

    def told_by(self, cond: Atom) -> tuple[set[Atom], set[Atom]]:
        """What a condition compares, with what that is made of, and what is made of these: it tells something of it."""
        if cond not in self.told_by_condition:
            compared: set[Atom] = set()
            todo = [cond]
            while todo:
                x = self.makers.get(todo.pop())  # type: ignore[call-overload]
                if x is not None and x.op.name in ("and", "or", "not"):  # type: ignore[union-attr]
                    todo += x.op.args  # type: ignore[union-attr]
                elif x is not None and x.op.name in ASKING:  # type: ignore[union-attr]
                    compared.update(x.op.args)  # type: ignore[union-attr]
            compared = reached(compared, self.made)
            self.told_by_condition[cond] = compared, self.made_of(compared)
        return self.told_by_condition[cond]

    def asked_of(self, bind: Bind) -> bool:
        """Whether a condition tells something of where an operation has an infinite slope, or is infinite."""
        return bind.vars[0] in self.doubted or told_of(bind, self.compared, self.told)

    def spread(self, binds: Sequence[Bind]) -> None:
        """Find what may be infinite."""
        for x in binds:
            if type(x.op) is Prim and x.op.name in PRIMITIVES and all(map(self.of_sizes, x.op.args)):
                self.sizes.update(x.vars)
        for x in binds:
            if asks(x):
                self.unbounded.update(a for a in x.op.args if type(a) is Var)  # type: ignore[union-attr]
        for x in binds:  # and the array that such a number was read from
            if type(x.op) is Prim and x.op.name == "get" and x.vars[0] in self.unbounded:
                self.unbounded.add(x.op.args[0])  # type: ignore[arg-type]
        while True:
            before = len(self.unbounded)
            for x in binds:
                op = x.op
                if type(op) is Prim:
                    inherited = any(a in self.unbounded for a in op.args) and op.name != "pass-on"
                    if inherited or self.unbounds(op) and x.vars[0] not in self.sizes and self.asked_of(x):
                        self.unbounded.update(x.vars)
                else:
                    for given, taken in handed(x):
                        self.hand_on(given, taken, x)
            if len(self.unbounded) == before:
                return

    def of_sizes(self, a: Atom) -> bool:
        """Whether a number is a constant, an integer that was read from no array, or made of such."""
        return type(a) is Const or a in self.sizes or type(a) is Var and a.type == INT and a not in self.read

    def unbounds(self, op: Prim) -> bool:
        """Whether an operation may give an infinite number for finite ones."""
        if op.name == "/" and self.of_sizes(op.args[1]):
            return type(op.args[1]) is Const and op.args[1].value == 0
        return op.name in UNBOUNDED and not (op.name == "**" and whole_exponent(op.args[1]))

    def hand_on(self, given: Sequence[Atom], taken: Sequence[Var], bind: Bind) -> None:
        for a, v in zip(given, taken):
            if a in self.unbounded and v not in self.unbounded and not self.let_through(a, bind):
                self.unbounded.add(v)

    def let_through(self, a: Atom, bind: Bind) -> bool:
        """Whether the condition of a branch tells something of all that may make a result of it infinite."""
        if type(bind.op) is not If:
            return False
        told = self.told_by(bind.op.cond)
        seen: set[Atom] = set()
        todo = [a]
        while todo:
            v = todo.pop()
            if v not in self.unbounded or v in seen:
                continue
            seen.add(v)
            x = self.makers.get(v)  # type: ignore[call-overload]
            if x is None or v in self.doubted:
                return False
            op: Prim = x.op  # type: ignore[assignment]
            if self.unbounds(op) and v not in self.sizes and self.asked_of(x) and not told_of(x, *told):
                return False
            todo += op.args
        return True

    def steep(self, bind: Bind) -> bool:
        """Whether a slope of an operation may be infinite, or NaN."""
        row = PRIMITIVES.get(bind.op.name)  # type: ignore[union-attr]
        return row is not None and any(self.slope(row, k, bind) for k in range(len(row.params)))

    def slope(self, row: Primitive, k: int, bind: Bind) -> bool:
        """Whether the partial by parameter ``k`` may be infinite, or NaN."""
        if isinstance(row.partials, str) or row.partials[k] is None or row.jvp is not None or row.vjp is not None:
            return False
        names = dict(zip(row.params, bind.op.args), y=bind.vars[0])  # type: ignore[union-attr]
        asked = row.name not in GENTLE and self.asked_of(bind)
        return self.infinite(parse_partial(row.partials[k]), names, not asked)

    def infinite(self, form: Any, names: dict[str, Atom], gentle: bool) -> bool:
        if isinstance(form, str):
            return names[form] in self.unbounded
        if not isinstance(form, tuple):
            return False
        head, *args = form
        if head == "select":
            args = args[1:]
        if head == "/" and isinstance(args[1], str) and self.of_sizes(names[args[1]]):
            args = args[:1]
        elif head in UNBOUNDED and not gentle:
            return not (head == "**" and whole_exponent(names.get("b")))
        return any(self.infinite(a, names, gentle) for a in args)

    # -------------------------------------------------------------------------------------- what is certain

    def needed(self, block: Block, underflow: Collection[str] = ()) -> set[Var]:
        """The variables on which results depend by operations that hand on all of an adjoint; those ``underflow`` do
        not."""
        self.certain: set[Var] = set()
        self.underflow = underflow
        self.ask(block.results, 0)
        self.walk(block, 0)
        return self.certain

    def settle(self, block: Block, home: int) -> None:
        """Note in which branch each variable is made."""
        for x in block.binds:
            self.home.update(dict.fromkeys(x.vars, home))
            op = x.op
            if type(op) is Loop or type(op) is While:
                self.home.update(dict.fromkeys(op.accs, home))
            for k, inner in enumerate(blocks_of(op)):
                branch = type(op) is If or type(op) is Case
                if type(op) is Case:
                    self.home.update(dict.fromkeys(op.arms[k].fields, id(inner)))
                self.settle(inner, id(inner) if branch else home)

    def ask(self, atoms: Iterable[Atom], home: int) -> None:
        """These are needed in the branch ``home``: what was made outside of it is not needed for that alone."""
        self.certain.update(a for a in atoms if type(a) is Var and self.home.get(a) == home)

    def walk(self, block: Block, home: int) -> None:
        """Ask for what is needed for what has been asked for."""
        for x in reversed(block.binds):
            op, wanted = x.op, [v in self.certain for v in x.vars]
            if type(op) is Apply or type(op) is Make:
                self.ask(op.args, home)
            if not any(wanted):
                if type(op) is If or type(op) is Case:
                    continue
            if type(op) is Prim and wanted[0]:
                self.ask(self.handed_on(op), home)
            elif type(op) is If or type(op) is Case:
                if type(op) is Case:
                    self.ask((op.value,), home)
                for inner in blocks_of(op):
                    self.ask((r for r, v in zip(inner.results, wanted) if v), id(inner))
                    self.walk(inner, id(inner))
            elif type(op) is Loop or type(op) is While:
                self.iterations(op, wanted, home)

    def iterations(self, op: Loop | While, wanted: list[bool], home: int) -> None:
        """Ask for what a loop's iterations need: what the last one of them hands on is needed, and what comes into it.
        What any other one hands on may have no weight in the next one."""
        width = len(op.accs)
        if type(op) is While:  # its variables tell the number of iterations, too
            wanted = [*wanted[:width], *wanted[width + 1 :]]
        going = [False] * width
        while any(wanted):
            before = set(self.certain)
            self.ask((r for r, v in zip(op.body.results, wanted) if v), home)
            self.walk(op.body, home)
            going = [a in self.certain for a in op.accs]
            stays = [v and more for v, more in zip(wanted, going)]
            if self.underflow and stays != wanted[:width]:
                wanted[:width], self.certain, going = stays, before, [False] * width
            elif self.underflow or all(v for v, more in zip(wanted, going) if more):
                break
            else:
                wanted[:width] = [v or more for v, more in zip(wanted, going)]
        self.ask((z for z, v in zip(op.inits, going) if v), home)

    def handed_on(self, op: Prim) -> Sequence[Atom]:
        """The operands of an operation that get all of its adjoint."""
        if op.name in ("select", "min", "max", "relu") or op.name in self.underflow:
            return ()
        return op.args[1:] if op.name == "pass-on" else op.args


def element(v: Var) -> Any:
    """The type of a variable, or of an array's elements."""
    return v.type.elem if isinstance(v.type, Arr) else v.type


def reached(atoms: Iterable[Atom], ways: Mapping[Atom, Sequence[Atom]]) -> set[Atom]:
    """Some atoms, and the variables that can be reached from them."""
    found = set(atoms)
    todo = [a for a in found if type(a) is Var]
    while todo:
        for a in ways.get(todo.pop(), ()):
            if type(a) is Var and a not in found:
                found.add(a)
                todo.append(a)
    return found


def told_of(bind: Bind, compared: Collection[Atom], told: Collection[Atom]) -> bool:
    """Whether an operation is infinite, or has an infinite slope, where something is told of."""
    op: Prim = bind.op  # type: ignore[assignment]
    if op.name in COMPARED_ITSELF and bind.vars[0] in compared:
        return True
    return any(a in told for a in (op.args[1:] if op.name == "/" else op.args))


def handed(bind: Bind) -> list[tuple[Sequence[Atom], Sequence[Var]]]:
    """What a loop or a branch hands on, and as what."""
    op = bind.op
    if type(op) is Loop or type(op) is While:
        return [(op.inits, op.accs), (op.body.results, op.accs), (op.body.results, bind.vars)]
    return [(block.results, bind.vars) for block in blocks_of(op)]


def asks(bind: Bind) -> bool:
    """Whether an operation is of a number and itself, as one that asks whether it is NaN or infinite."""
    op = bind.op
    same_ = type(op) is Prim and op.name in ("=", "!=", "-") and op.args[0] is op.args[1]
    return same_ and type(op.args[0]) is Var and not isinstance(op.args[0].type, Arr)  # type: ignore[union-attr]


def whole_exponent(b: Atom | None) -> bool:
    """Whether it is an exponent for which a power of finite numbers is finite: an integer from 0 on."""
    return type(b) is Const and b.value >= 0 and float(b.value).is_integer()
