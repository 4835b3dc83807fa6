"""SymPy simplification of typed programs: let-aware, checked at sampled points, within a time budget.

The unit is a *run*: Real scalar operations of one block. Its let-bound names are SymPy's symbols, so an expression
never grows beyond what one binding holds; loops, branches and arrays stay as they are, their regions are runs of their
own. What SymPy offers is kept only if

* the weighted operation count (``Primitive.cost``) falls,
* the value is the same at every sampled point, within a tolerance that follows the rounding error of the *original*
  there; a NaN stays NaN, an infinity that infinity, and what was finite stays finite,
* the time lasts.

Everything kept or refused is in the ``Log``, with the reason: ``hyad.show(f, "simplified").log``.

How to read the file: the log; the tools; the time (``Clock``); one run (``Run``); the pass (``simplify``). The graph
of a run's operations and the points that forms are compared at are in ``scalars``.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core import INT, REAL, Atom, Bind, Block, Const, Prim, Program, Var, all_binds, blocks_of, uses
from ..program.builder import Builder
from ..program.dead import dead_code
from ..program.primitives import PRIMITIVES, sympy_form
from ..program.printer import variable_names
from ..program.rebuild import Rebuild, rebuild
from .scalars import KNOWN, Graph, Points, functions, lift, lower

#: The longest run looked at as one; longer ones are cut.
WINDOW = 64
#: The most operations that a definition may grow to when the values it shares are written out.
INLINED = 60
#: How many ways of sharing and rewriting the whole of a run may take, in operations written out.
WHOLE = 400
#: How many ways to compute a whole run are judged, the cheapest ones.
PLANS = 4
#: Rounds at most; each starts from what the last one kept.
ROUNDS = 4


# ------------------------------------------------------------------------------------------------- log


@dataclass(frozen=True)
class Entry:
    """One rewrite, kept or refused: of the binding ``name``, made from the form ``source``."""

    name: str
    source: str
    before: str
    after: str
    tool: str
    cost_before: int
    cost_after: int
    kept: bool
    why: str


@dataclass
class Log:
    """What simplification did. ``before`` and ``after`` are the program's weighted operation counts, each region
    counted once; ``str`` makes a table."""

    entries: list[Entry] = field(default_factory=list)
    before: int = 0
    after: int = 0

    @property
    def kept(self) -> list[Entry]:
        return [e for e in self.entries if e.kept]

    @property
    def refused(self) -> list[Entry]:
        return [e for e in self.entries if not e.kept]

    def __str__(self) -> str:
        rows = [("", "name", "cost", "by", "rewrite, form and reason")]
        for e in self.entries:
            cost = f"{e.cost_before} -> {e.cost_after}" if e.after else str(e.cost_before)
            what = f"{short(e.before)}  =>  {short(e.after)}" if e.after else short(e.before)
            form = f"  [{short(e.source)}]" if e.source else ""
            why = "" if e.kept else f": {e.why}"
            rows.append(("kept" if e.kept else "refused", e.name, cost, e.tool, f"{what}{form}{why}"))
        widths = [max(len(r[k]) for r in rows) for k in range(4)]
        lines = ["  ".join([*(c.ljust(w) for c, w in zip(r, widths)), r[4]]).rstrip() for r in rows]
        total = f"{len(self.kept)} kept, {len(self.refused)} refused; operations, weighted: {self.before}"
        return "\n".join([*lines, f"{total} -> {self.after}"])


def short(text: str, width: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


# ----------------------------------------------------------------------------------------------- tools


def horner(e: Any) -> Any:
    """Nested multiplication in the symbol of the highest degree."""
    import sympy

    powers = [p for p in e.atoms(sympy.Pow) if p.base.is_Symbol and p.exp.is_Integer and p.exp > 1]
    for p in sorted(powers, key=lambda p: (-p.exp, str(p.base))):
        if e.is_polynomial(p.base):
            return sympy.horner(e, wrt=p.base)
    return e


def collect(e: Any) -> Any:
    """The symbol that most terms of a sum have in common, taken out of them."""
    import sympy

    often: dict[Any, int] = {}
    for term in e.args if e.is_Add else ():
        for s in term.free_symbols:
            often[s] = often.get(s, 0) + 1
    common = sorted((s for s in often if often[s] > 1), key=lambda s: (-often[s], str(s)))
    return sympy.collect(e, common[0]) if common else e


def cancel_factor(e: Any) -> Any:
    """The quotient of two factored polynomials without a common divisor."""
    import sympy

    return sympy.factor(sympy.cancel(e))


def tools(e: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """What is tried on an expression, by name: a bounded set, the quick ones first."""
    import sympy
    from sympy import cos, cosh, sin, sinh, tan, tanh

    chosen: list[tuple[str, Callable[[Any], Any]]] = [("evaluate", lambda e: e)]
    powers = [p for p in e.atoms(sympy.Pow, sympy.exp) if not p.exp.is_Integer]
    if len(powers) > 1 or (powers and e.has(sympy.Pow)):
        chosen.append(("powsimp", sympy.powsimp))
    if e.has(sympy.Add):
        chosen += [
            ("factor_terms", sympy.factor_terms),
            ("collect", collect),
            ("horner", horner),
            ("factor", sympy.factor),
        ]
        if any(p.exp.is_negative for p in e.atoms(sympy.Pow, sympy.exp)):
            chosen += [("together", sympy.together), ("cancel", sympy.cancel), ("cancel, factor", cancel_factor)]
    if e.has(sin, cos, tan, sinh, cosh, tanh):
        chosen.append(("trigsimp", sympy.trigsimp))
    if any(p.exp.is_Rational and p.exp.q == 2 for p in powers):
        chosen.append(("radsimp", sympy.radsimp))
    return chosen


# -------------------------------------------------------------------------------------------- the time


class OutOfTime(BaseException):
    """Raised inside SymPy when the time is up. Not an ``Exception``: SymPy catches those."""


class Clock:
    """Runs calls that are cut when ``budget`` seconds in all, or a slice of them for one call, are spent."""

    def __init__(self, budget: float) -> None:
        self.end = time.monotonic() + budget
        self.slice = max(budget / 6, 0.01)
        self.armed = False
        self.done: dict[tuple[str, Any], Any] = {}  # what a tool made of an expression

    @staticmethod
    def works() -> bool:
        """A signal cuts a call, in the main thread and where there are such signals."""
        return threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def _ring(self, _: int, frame: Any) -> None:
        if not self.armed:
            return
        while frame is not None:  # an import must not be left half done, and finalisers swallow what is raised
            file = frame.f_code.co_filename
            if frame.f_code.co_name == "__del__" or "importlib" in file or file.endswith(("weakref.py", "refset.py")):
                return  # the alarm rings again soon
            frame = frame.f_back
        raise OutOfTime

    def check(self) -> None:
        """Raises ``OutOfTime`` if the budget is spent."""
        if self.left <= 0:
            raise OutOfTime

    def attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``; None where it fails or takes longer than its slice. Raises ``OutOfTime``."""
        try:
            return self.call(function, *args)
        except OutOfTime:
            self.check()
        except Exception:  # no form, or a failure of SymPy's: there is nothing to keep
            pass
        return None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``. Raises ``OutOfTime``."""
        seconds = min(self.left, self.slice)
        if seconds <= 0:
            raise OutOfTime
        begun = time.monotonic()
        handler = signal.signal(signal.SIGALRM, self._ring)
        other = signal.setitimer(signal.ITIMER_REAL, seconds, 0.02)  # again, should the first come to nothing
        self.armed = True
        try:
            return function(*args)
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if other[0]:  # somebody else's timer goes on
                signal.setitimer(signal.ITIMER_REAL, max(1e-3, other[0] - (time.monotonic() - begun)), other[1])


# --------------------------------------------------------------------------------------------- one run


@dataclass
class Definition:
    """A binding of a run that stays one: its SymPy expression over the symbols of leaves and other definitions."""

    bind: Bind
    expr: Any
    symbol: Any

    @property
    def var(self) -> Var:
        return self.bind.vars[0]


class Run:
    """One run: its operations as a graph, the values wanted outside (``outputs``), and what replaces them."""

    def __init__(self, binds: Sequence[Bind], total: dict[Var, int], called: dict[Var, str]) -> None:
        self.binds, self.called = binds, called
        self.graph = Graph()
        self.id: dict[Var, int] = {}  # original
        self.inner: dict[Var, int] = {}
        for bind in binds:
            args = []
            for a in bind.op.args:  # type: ignore[union-attr]
                if type(a) is Var and a in self.id:
                    self.inner[a] = self.inner.get(a, 0) + 1
                    args.append(self.id[a])
                else:
                    args.append(self.graph.leaf(a))
            self.id[bind.vars[0]] = self.graph.add(bind.op.name, *args)  # type: ignore[union-attr]
        self.outputs = [b.vars[0] for b in binds if total.get(b.vars[0], 0) > self.inner.get(b.vars[0], 0)]
        self.roots = [self.id[v] for v in self.outputs]
        self.new: dict[Var, int] = {}  # what stands for each output in the end; empty: nothing was kept
        self.names: dict[int, Bind] = {}
        self.entries: list[Entry] = []
        self.before = self.after = self.graph.cost(self.roots)
        self.points: Points | None = None

    # --------------------------------------------------------------------------------- SymPy's view

    def system(self, level: str) -> tuple[list[Definition], dict[Any, int], dict[Any, str]]:
        """The run as definitions. ``"shared"``: values used once are written out, shared ones are symbols;
        ``"small"``: functions of one symbol are written out as well; ``"whole"``: as much as ``INLINED`` allows.

        Also the ids of the leaves' symbols, and the primitives of the functions that occur.
        """
        import sympy

        where: dict[Any, int] = {}
        calls = functions()
        symbols: dict[int, Any] = {}
        taken: set[str] = set()
        seen: dict[int, Any] = {}  # what stands for a value inside others
        sizes: dict[int, int] = {}
        outside = set(self.outputs)
        definitions: list[Definition] = []

        def symbol(name: str, value: int, **known: Any) -> Any:
            chosen, k = name, 1
            while chosen in taken:
                chosen, k = f"{name}_{k}", k + 1
            taken.add(chosen)
            made = symbols[value] = sympy.Symbol(chosen, real=True, **known)
            where[made] = value
            return made

        def leaf(i: int) -> Any:
            op = self.graph.ops[i]
            if type(op) is Const:
                number = lift(op)
                if number is not None:
                    return number
            if i not in symbols:
                if type(op) is Const:
                    known = {"positive": op.value > 0} if math.isfinite(op.value) and op.value else {}
                    symbol(repr(op.value), i, **known)
                else:
                    symbol(self.called.get(op, op.name), i)
            return symbols[i]

        for bind in self.binds:
            var = bind.vars[0]
            value = self.id[var]
            if value in seen and var not in outside:
                continue
            name, *args = self.graph.ops[value]
            operands = []
            for a in args:
                if a not in seen:
                    seen[a], sizes[a] = leaf(a), 0
                operands.append(seen[a])
            row = PRIMITIVES[name]
            if name in KNOWN:
                expr = sympy_form(row, *operands)
            else:
                function = sympy.Function(f"hyad.{name}", real=True)
                calls[function] = name
                expr = function(*operands)
            size = 1 + sum(sizes[a] for a in args)
            single = var not in outside and self.inner.get(var, 0) == 1
            if level == "shared":
                inline = single and not var.given
            elif level == "small":
                inline = single or (len(args) == 1 and operands[0].is_Symbol and name != "neg")
            else:
                inline = size <= INLINED
            if not inline or var in outside:
                positive, nonnegative = expr.is_positive, expr.is_nonnegative
                known = {"positive": True} if positive else {"nonnegative": True} if nonnegative else {}
                definitions.append(Definition(bind, expr, symbol(self.called.get(var, var.name), value, **known)))
            seen[value], sizes[value] = (expr, size) if inline else (symbols[value], 1)
        return definitions, where, calls

    # -------------------------------------------------------------------------------------- judging

    def key(self) -> Any:
        """Equal for runs that get the same treatment."""
        number: dict[Any, int] = {}
        ops = [
            op
            if type(op) is tuple
            else ("var", number.setdefault(op, i))
            if type(op) is Var
            else repr(op) + str(op.soft)
            for i, op in enumerate(self.graph.ops)
        ]
        return tuple(ops), tuple(self.roots), tuple(b.vars[0].given for b in self.binds)

    def disagreement(self, old: int, new: int, samples: int, seed: int) -> str | None:
        if self.points is None:
            self.points = Points(self.graph, self.roots, samples, seed)
        return None if old == new else self.points.disagreement(old, new)

    def entry(
        self, d: Definition, before: str, after: str, tool: str, costs: tuple[int, int], why: str | None
    ) -> Entry:
        source = d.bind.span.text if d.bind.span is not None else ""
        return Entry(str(d.symbol), source, before, after, tool, *costs, why is None, why or "")

    def gives_up(self, why: str) -> None:
        """Say that the run, or the rest of what could be tried on it, is left as it is."""
        last = self.binds[-1]
        source = last.span.text if last.span is not None else ""
        name = self.called.get(last.vars[0], last.vars[0].name)
        text = f"{len(self.binds)} operations up to {name}"
        self.entries.append(Entry(name, source, text, "", "-", self.before, self.before, False, why))

    # --------------------------------------------------------------------------------- improvements

    def improve(self, clock: Clock, samples: int, seed: int) -> None:
        """Try every level; keep the cheapest result."""
        kept: list[Entry] = []
        refused: dict[tuple[str, str], Entry] = {}
        trouble = ""
        for level in ("shared", "small", "whole"):
            step = self.jointly if level == "whole" else self.one_by_one
            try:
                new, entries, names = step(level, clock, samples, seed)
            except OutOfTime:
                trouble = "the time budget is spent" if clock.left <= 0 else "SymPy takes too long to read it"
                break
            except Exception as error:  # SymPy or a primitive of the user's: their failure is no reason to stop
                trouble = f"{type(error).__name__}: {error}"
                break
            for e in entries:
                if not e.kept:
                    refused.setdefault((e.name, e.after), e)
            cost = self.graph.cost(new.values())
            if cost < self.after:
                self.after, self.new, kept = cost, new, [e for e in entries if e.kept]
                self.names = names
        for bind in self.binds:  # unchanged parts keep their names and places
            self.names.setdefault(self.id[bind.vars[0]], bind)
        done = {(e.name, e.after) for e in kept}
        self.entries = kept + [e for k, e in refused.items() if k not in done]
        if trouble:
            self.gives_up(trouble)

    def one_by_one(self, level: str, clock: Clock, samples: int, seed: int):
        """Each definition in turn, over those already rewritten."""
        definitions, where, calls = clock.call(self.system, level)
        entries: list[tuple[int, Entry]] = []
        names: dict[int, Bind] = {}
        settled: list[int] = []
        for d in definitions:
            old = self.id[d.var]
            standing = self.transplant(old, {self.id[o.var]: where[o.symbol] for o in definitions if o is not d})
            cost = self.graph.cost([standing], settled)
            chosen = standing
            called = {where[o.symbol]: str(o.symbol) for o in definitions if o is not d}
            for saved, new, tool in self.offers(d, where, calls, clock, cost, settled):
                clock.check()
                why = self.disagreement(old, new, samples, seed)
                before, after = self.graph.text(standing, called), self.graph.text(new, called)
                if new in called:
                    after = called[new]
                entries.append((new, self.entry(d, before, after, tool, (cost, cost - saved), why)))
                if why is None:
                    chosen = new
                    break
            where[d.symbol] = chosen
            names.setdefault(chosen, d.bind)
            settled.append(chosen)
        new = {d.var: where[d.symbol] for d in definitions if d.var in self.outputs}
        alive = set(self.graph.reach(new.values()))
        return new, [e for i, e in entries if i in alive or not e.kept], names

    def offers(self, d: Definition, where: dict, calls: dict, clock: Clock, cost: int, settled: list[int]):
        """What SymPy makes of a definition for less than ``cost``, best first: (saved, id, tool)."""
        found: dict[int, tuple[int, int, str]] = {}
        for tool, expr in self.forms(d.expr, clock):
            new = clock.attempt(lower, self.graph, expr, where, calls)
            if new is None:
                continue
            saved = cost - self.graph.cost([new], settled)
            if saved > 0 and new not in found:
                found[new] = (saved, new, tool)
        return sorted(found.values(), key=lambda o: -o[0])

    def forms(self, expr: Any, clock: Clock) -> list[tuple[str, Any]]:
        """What the tools make of an expression, each result once. A tool that fails or takes too long has none."""
        seen: dict[Any, str] = {}
        for tool, function in tools(expr):
            if (tool, expr) not in clock.done:
                made = clock.attempt(function, expr)
                clock.done[tool, expr] = expr if made is None else made
            seen.setdefault(clock.done[tool, expr], tool)
        return [(tool, made) for made, tool in seen.items()]

    def jointly(self, level: str, clock: Clock, samples: int, seed: int):
        """All outputs at once, written out; then what they have in common is shared by SymPy's ``cse``."""
        definitions, where, calls = clock.call(self.system, level)
        keep = {d.var: self.id[d.var] for d in definitions if d.var in self.outputs}
        total = sum(int(d.expr.count_ops()) for d in definitions)
        if total > WHOLE or any(d.var not in keep for d in definitions):
            return keep, [], {}
        forms: list[list[tuple[str, Any, int]]] = []
        for d in definitions:
            able = []
            for tool, expr in self.forms(d.expr, clock):
                new = clock.attempt(lower, self.graph, expr, where, calls)
                if new is not None:
                    able.append((tool, expr, new))
            if not able:
                return keep, [], {}
            forms.append(able)
        cheapest = [min(able, key=lambda f: self.graph.cost([f[2]])) for able in forms]
        plans = [self.plan("cheapest", cheapest, where, calls, clock)]
        for tool in dict.fromkeys(f[0] for able in forms for f in able):
            plans.append(
                self.plan(
                    tool, [dict((f[0], f) for f in able).get(tool, able[0]) for able in forms], where, calls, clock
                )
            )
        entries: list[Entry] = []
        for cost, tool, ids in sorted(plans, key=lambda p: p[0])[:PLANS]:
            if cost >= self.after:
                break
            new, changed, bad = dict(keep), [], None
            for d, i in zip(definitions, ids):
                old = self.id[d.var]
                if i == old:
                    continue
                clock.check()
                why = self.disagreement(old, i, samples, seed)
                if why is None:
                    new[d.var] = i
                    changed.append(d)
                elif bad is None:  # one of a plan's refusals says enough
                    text = self.graph.text(old, {}), self.graph.text(i, {})
                    bad = self.entry(d, *text, tool, (self.before, cost), why)
                    entries.append(bad)
            final = self.graph.cost(new.values())
            if final < self.after:
                names: dict[int, Bind] = {}
                for d in definitions:
                    names.setdefault(new[d.var], d.bind)
                text = [", ".join(self.graph.text(to[d.var], {}) for d in changed) for to in (keep, new)]
                first = self.entry(changed[0], *text, tool, (self.before, final), None)
                kept = replace(first, name=", ".join(str(d.symbol) for d in changed))
                return new, [*entries, kept], names
        return keep, entries, {}

    def plan(self, tool: str, forms: list[tuple[str, Any, int]], where: dict, calls: dict, clock: Clock):
        """The cheaper of two ways to compute expressions: as they are, and after ``cse``: (cost, tool, ids)."""
        exprs = [expr for _, expr, _ in forms]

        def common() -> list[int]:
            import sympy

            parts, rest = sympy.cse(exprs, symbols=sympy.numbered_symbols("common_", real=True))
            inner = dict(where)
            for s, e in parts:
                inner[s] = lower(self.graph, e, inner, calls)
            return [lower(self.graph, e, inner, calls) for e in rest]

        ids = [i for _, _, i in forms]
        plans = [(self.graph.cost(ids), tool, ids)]
        found = clock.attempt(common)
        if found is not None:
            plans.append((self.graph.cost(found), f"{tool}, cse", found))
        return min(plans, key=lambda p: p[0])

    def transplant(self, root: int, replaced: dict[int, int]) -> int:
        """``root`` rebuilt over other values for some of its operands."""
        memo = dict(replaced)
        for i in self.graph.reach([root]):
            if i in memo and i != root:
                continue
            op = self.graph.ops[i]
            memo[i] = self.graph.add(op[0], *(memo[a] for a in op[1:])) if type(op) is tuple else i
        return memo[root]


# ------------------------------------------------------------------------------------------ the program


def member(bind: Bind) -> bool:
    """Whether a binding is a Real operation on Reals (or with a whole constant, as in ``(** x 3)``)."""
    op = bind.op
    if type(op) is not Prim or op.name not in PRIMITIVES or bind.vars[0].type != REAL or op.name == "real":
        return False
    return all(a.type == REAL or (type(a) is Const and a.type == INT) for a in op.args)  # type: ignore[union-attr]


def runs_of(program: Program) -> list[Run]:
    """The runs of all blocks. A run may be interrupted by other operations: all of them are pure, and what they make
    of the run's values comes back as leaves."""
    total, called = uses(program.body), variable_names(program)
    found: list[Run] = []
    stack: list[Block] = [program.body]
    while stack:
        block = stack.pop()
        binds = [b for b in block.binds if member(b)]
        for k in range(0, len(binds), WINDOW):
            found.append(Run(binds[k : k + WINDOW], total, called))
        for bind in reversed(block.binds):
            stack.extend(reversed(blocks_of(bind.op)))
    return found


class Replace(Rebuild):
    """Rebuilds a program with the new forms of its runs, each output at the place of its old binding."""

    def __init__(self, builder: Builder, runs: Sequence[Run]) -> None:
        super().__init__(builder)
        self.run = {b.vars[0]: r for r in runs if r.new for b in r.binds}
        self.made: dict[Run, dict[int, Atom]] = {r: {} for r in runs}

    def bind(self, bind: Bind) -> None:
        run = self.run.get(bind.vars[0]) if bind.vars else None
        if run is None:
            self.copy(bind)
        elif bind.vars[0] in run.new:
            self.here[bind.vars[0]] = self.emit(run, run.new[bind.vars[0]], bind)

    def emit(self, run: Run, root: int, bind: Bind) -> Atom:
        made = self.made[run]
        for i in run.graph.reach([root]):
            if i in made:
                continue
            op = run.graph.ops[i]
            if type(op) is not tuple:
                made[i] = self.atom(op)
                continue
            source = run.names.get(i, bind if i == root else None)
            var = source.vars[0] if source is not None else None
            self.b.span = (source or bind).span
            args = [made[a] for a in op[1:]]
            made[i] = self.b.prim(op[0], *args, hint=var.name if var else None, given=var.given if var else False)
        return made[root]


def weight(program: Program) -> int:
    """The weighted operation count of a program, each region counted once."""
    names = (b.op.name for b in all_binds(program.body) if type(b.op) is Prim)
    return sum(PRIMITIVES[n].cost for n in names if n in PRIMITIVES)


def simplify(program: Program, budget: float = 2.0, samples: int = 256, seed: int = 0) -> tuple[Program, Log]:
    """The program with SymPy's simplifications that pass every check, and the log of what was kept and refused.

    ``(- (* t t) (* t t))``  =>  ``0.0``; ``(/ x x)`` stays.

    ``budget``: seconds that SymPy may take in all (its import, a third of a second once, comes on top). ``samples``:
    about so many random points per run, besides the special ones. The result depends on the program and the seed
    alone as long as the budget lasts. Outside the main thread nothing could cut SymPy short: nothing is simplified.

    Design decision: sampling is evidence, not proof. Agreement is claimed for operands of size 1e-8 to 1e4 and zero;
    beyond, products may overflow in another order.
    """
    log = Log(before=weight(program), after=weight(program))
    runs = runs_of(program)
    if not runs:
        return program, log
    if not Clock.works():
        runs[-1].gives_up("SymPy is only used in the main thread, where it can be cut short")
        log.entries = runs[-1].entries
        return program, log
    import sympy  # noqa: F401  (outside the budget)

    functions()
    clock = Clock(budget)
    stable: set[Any] = set()  # runs that nothing improves
    for _ in range(ROUNDS):
        for run in runs:
            key = run.key()
            if clock.left <= 0:
                run.gives_up("the time budget is spent")
            elif key not in stable:
                run.improve(clock, samples, seed)
                if not run.new:
                    stable.add(key)
        kept = [e for r in runs for e in r.entries if e.kept]
        known = {(e.name, e.before, e.after) for e in log.entries}
        log.entries += [e for r in runs for e in r.entries if e.kept or (e.name, e.before, e.after) not in known]
        changed = [r for r in runs if r.new]
        if not kept or not changed:
            break
        better = dead_code(rebuild(program, lambda b: Replace(b, changed)))
        if weight(better) >= weight(program):
            break
        program = better
        if clock.left <= 0:
            break
        runs = runs_of(program)
    log.after = weight(program)
    return program, log
