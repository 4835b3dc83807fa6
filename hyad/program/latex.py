r"""Programs as systems of definitions: one equation a binding, never one giant formula. In LaTeX, text, and SymPy.

``(fn [v] (ifold (fn [s i] (+ s (sin (get v i)))) 0.0 (len v)))``  =>  ``f(v) &= \sum_{i=0}^{n - 1} \sin(v_{i})``

A ``Listing`` turns a program into equations. A loop that only adds is a sum, an accumulator that does more a
recurrence (``r^{(i+1)} = .. r^{(i)} ..``), what a loop stacks a family with indices (``r_{i} = ..``), an ``if`` a
choice between cases, a ``match`` one between what the data is (``t = Node(l, r)``). A recursive function is an
equation of its own; a ``while`` is a recurrence up to the first step at which its condition fails. A value that is
used once is written where it is used, as long as that stays small; a shared one never is, so the system is no larger
than the program.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .. import core
from ..core import (
    BOOL,
    INT,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Data,
    If,
    Leaf,
    Loop,
    Make,
    Prim,
    Program,
    Tree,
    Var,
    While,
    functions_of,
    uses,
)
from .names import DOT, MACRON
from .primitives import PRIMITIVES, sympy_form
from .printer import variable_names
from .reader import deep

#: A value used once is written into its use if it has at most so many nodes.
SMALL = 8


# ------------------------------------------------------------------------------------------- equations


@dataclass(frozen=True, eq=False)
class Ref:
    """A variable, or an element of it; ``step``: its value before that iteration."""

    var: Var
    indices: tuple[Any, ...] = ()
    step: Any = None


@dataclass(frozen=True, eq=False)
class Apply:
    """A primitive, an array operation, ``cases`` (condition, value, other value) or ``tuple``, of expressions."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Sum:
    index: Var
    count: Any
    term: Any


@dataclass(frozen=True, eq=False)
class Equation:
    """``left = right`` for all indices of ``ranges`` (index, count), where ``conditions`` (condition, truth) hold. A
    ``left`` of None: a requirement."""

    left: Any
    right: Any
    ranges: tuple[tuple[Var, Any], ...] = ()
    conditions: tuple[tuple[Any, bool], ...] = ()


def extent(e: Any, limit: int = SMALL + 1) -> int:
    """The nodes of an expression, counted up to ``limit``; a name counts as one with its subscripts."""
    if isinstance(e, (Ref, Const)):
        return 1
    if isinstance(e, Sum):
        return 2 + extent(e.term, limit)
    total = 1
    for a in e.args:
        if total > limit:
            break
        total += extent(a, limit - total)
    return total


def plus(e: Any, k: int) -> Any:
    """An index expression plus a constant."""
    if isinstance(e, Const):
        return Const(e.value + k, INT)
    if isinstance(e, Apply) and e.name in ("+", "-") and isinstance(e.args[1], Const):
        k += e.args[1].value if e.name == "+" else -e.args[1].value
        e = e.args[0]
    return e if k == 0 else Apply("+" if k > 0 else "-", (e, Const(abs(k), INT)))


class Listing:
    """The equations of a program, in order, and what its results are."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses = uses(program.body)
        self.seen: dict[Var, Any] = {}  # what is written for a variable, where that is not its name
        self.equations: list[Equation] = []
        for f in functions_of(program.body):
            assert f.body is not None
            for var, n in uses(f.body).items():
                self.uses[var] = self.uses.get(var, 0) + n
            self.block(f.body, (), ())
            results = [self.atom(r) for r in f.body.results]
            value = results[0] if len(results) == 1 else Apply("tuple", tuple(results))
            self.say(Apply(f.name, tuple(map(Ref, f.params))), value, (), ())
        self.block(program.body, (), ())
        self.results = [self.atom(r) for r in program.body.results]

    def atom(self, a: Atom) -> Any:
        if isinstance(a, Const):
            return a
        found = self.seen.get(a)  # type: ignore[arg-type]
        return Ref(a) if found is None else found  # type: ignore[arg-type]

    def say(self, left: Any, right: Any, ranges: tuple, conditions: tuple) -> None:
        self.equations.append(Equation(left, right, ranges, conditions))

    def block(self, block: Block, ranges: tuple, conditions: tuple, leave_out: frozenset[Var] = frozenset()) -> None:
        for bind in block.binds:
            op = bind.op
            if isinstance(op, Prim):
                if bind.vars[0] not in leave_out:
                    self.prim(bind, op, ranges, conditions)
            elif isinstance(op, If):
                self.choice(bind, op, ranges, conditions)
            elif isinstance(op, Loop):
                self.loop(bind, op, ranges, conditions)
            elif isinstance(op, Case):
                self.case(bind, op, ranges, conditions)
            elif isinstance(op, While):
                self.while_(bind, op, ranges, conditions)
            elif isinstance(op, Make):
                value = Apply(op.constructor.name, tuple(self.atom(a) for a in op.args))
                self.define(bind.vars[0], value, ranges, conditions)
            elif isinstance(op, core.Apply):
                self.call(bind, op, ranges, conditions)
            elif isinstance(op, Check):
                self.say(None, Apply(op.relation, (self.atom(op.a), self.atom(op.b))), ranges, conditions)

    def own(self, var: Var, ranges: tuple) -> Ref:
        """A variable bound inside loops is a family."""
        ref = Ref(var, tuple(Ref(i) for i, _ in ranges))
        if ranges:
            self.seen[var] = ref
        return ref

    def define(self, var: Var, value: Any, ranges: tuple, conditions: tuple) -> None:
        """Write ``value`` where ``var`` is used, or as an equation of its own."""
        trivial = isinstance(value, (Ref, Const)) or (var.type in (INT, BOOL) and extent(value) <= SMALL)
        single = self.uses.get(var, 0) <= 1 and not var.given and extent(value) <= SMALL
        if (trivial and not var.given) or (single and not isinstance(var.type, Arr)):
            self.seen[var] = value
        else:
            self.say(self.own(var, ranges), value, ranges, conditions)

    def prim(self, bind: Bind, op: Prim, ranges: tuple, conditions: tuple) -> None:
        var, args = bind.vars[0], tuple(self.atom(a) for a in op.args)
        if op.name == "get" and isinstance(args[0], Ref):
            value: Any = Ref(args[0].var, (*args[0].indices, *args[1:]), args[0].step)
            self.seen[var] = value
            return
        if op.name == "real":
            value = args[0]
        elif op.name == "select":
            value = Apply("cases", args)
        else:
            value = Apply(op.name, args)
        self.define(var, value, ranges, conditions)

    def choice(self, bind: Bind, op: If, ranges: tuple, conditions: tuple) -> None:
        condition = self.atom(op.cond)
        self.block(op.then, ranges, (*conditions, (condition, True)))
        self.block(op.orelse, ranges, (*conditions, (condition, False)))
        for var, x, y in zip(bind.vars, op.then.results, op.orelse.results):
            self.say(self.own(var, ranges), Apply("cases", (condition, self.atom(x), self.atom(y))), ranges, conditions)

    def case(self, bind: Bind, op: Case, ranges: tuple, conditions: tuple) -> None:
        """The arms with what the data is in each as their condition."""
        value, tests = self.atom(op.value), []
        for arm in op.arms:
            tests.append(Apply("=", (value, Apply(str(arm.constructor), tuple(map(Ref, arm.fields))))))
            self.block(arm.block, ranges, (*conditions, (tests[-1], True)))
        for k, var in enumerate(bind.vars):
            rows = [x for test, arm in zip(tests, op.arms) for x in (test, self.atom(arm.block.results[k]))]
            self.say(self.own(var, ranges), Apply("match", tuple(rows)), ranges, conditions)

    def call(self, bind: Bind, op: core.Apply, ranges: tuple, conditions: tuple) -> None:
        value = Apply(op.function.name, tuple(self.atom(a) for a in op.args))
        if len(bind.vars) == 1:
            self.define(bind.vars[0], value, ranges, conditions)
        else:
            self.say(Apply("tuple", tuple(self.own(v, ranges) for v in bind.vars)), value, ranges, conditions)

    def while_(self, bind: Bind, op: While, ranges: tuple, conditions: tuple) -> None:
        """A recurrence; the number of its steps is the first at which the condition fails."""
        width, step = len(op.accs), Var("k", INT)
        count = self.own(bind.vars[width], ranges)
        inside, outer = (*ranges, (step, count)), tuple(Ref(i) for i, _ in ranges)
        for k, acc in enumerate(op.accs):
            self.seen[acc] = Ref(bind.vars[k], outer, Ref(step))
            self.say(Ref(bind.vars[k], outer, Const(0, INT)), self.atom(op.inits[k]), ranges, conditions)
        self.block(op.cond, inside, conditions)
        self.say(count, Apply("first", (Ref(step), Apply("not", (self.atom(op.cond.results[0]),)))), ranges, conditions)
        self.block(op.body, inside, conditions)
        outs = (*bind.vars[:width], *bind.vars[width + 1 :])
        for k, (var, r) in enumerate(zip(outs, op.body.results)):
            if k < width:
                self.say(Ref(var, outer, plus(Ref(step), 1)), self.atom(r), inside, conditions)
                self.seen[var] = Ref(var, outer, count)
            else:
                self.own(var, ranges)
                self.say(Ref(var, (*outer, Ref(step))), self.atom(r), inside, conditions)

    def loop(self, bind: Bind, op: Loop, ranges: tuple, conditions: tuple) -> None:
        count, width = self.atom(op.count), len(op.accs)
        inside = (*ranges, (op.index, count))
        added: dict[int, Atom] = {}
        here = {b.vars[0]: b.op for b in op.body.binds if isinstance(b.op, Prim) and b.vars}
        for k, acc in enumerate(op.accs):
            term = addend(op, k, here, self.uses)
            if term is not None:
                added[k] = term
            else:
                outer = tuple(Ref(i) for i, _ in ranges)
                self.seen[acc] = Ref(bind.vars[k], outer, Ref(op.index))
                self.say(Ref(bind.vars[k], outer, Const(0, INT)), self.atom(op.inits[k]), ranges, conditions)
        self.block(op.body, inside, conditions, frozenset(op.body.results[k] for k in added))  # type: ignore[misc]
        for k, var in enumerate(bind.vars):
            result = op.body.results[k]
            if k in added:
                total: Any = Sum(op.index, count, self.atom(added[k]))
                start = self.atom(op.inits[k])
                if not (isinstance(start, Const) and start.value == 0):
                    total = Apply("+", (start, total))
                self.define(var, total, ranges, conditions)
            elif k < width:
                outer = tuple(Ref(i) for i, _ in ranges)
                self.say(Ref(var, outer, plus(Ref(op.index), 1)), self.atom(result), inside, conditions)
                self.seen[var] = Ref(var, outer, count)
            else:
                self.own(var, ranges)
                self.say(Ref(var, tuple(Ref(i) for i, _ in inside)), self.atom(result), inside, conditions)


def addend(op: Loop, k: int, here: dict[Var, Prim], counts: dict[Var, int]) -> Atom | None:
    """What a scalar accumulator that is only added to grows by; None for any other."""
    acc, result = op.accs[k], op.body.results[k]
    step = here.get(result) if isinstance(result, Var) else None
    if step is None or step.name != "+" or isinstance(acc.type, Arr) or counts.get(acc, 0) != 1:
        return None
    if counts.get(result, 0) != 1 or acc not in step.args:  # type: ignore[arg-type]
        return None
    return step.args[1] if step.args[0] is acc else step.args[0]


# ----------------------------------------------------------------------------------------------- LaTeX


GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi"
    " omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
)
_ESCAPES = {c: "\\" + c for c in "#$%&_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}
_NAME = re.compile(r"([^\W\d_]+)(\d*)")


def escaped(text: str) -> str:
    return "".join(_ESCAPES.get(c, c) for c in text)


def greek(letters: str) -> str | None:
    """The command of a Greek letter, given by its name or as itself."""
    if len(letters) == 1 and "GREEK" in unicodedata.name(letters, ""):
        spelled = unicodedata.name(letters).split()[-1]
        letters = spelled.capitalize() if letters.isupper() else spelled.lower()
        letters = {"lamda": "lambda", "Lamda": "Lambda"}.get(letters, letters)
    return "\\" + letters if letters in GREEK else None


@lru_cache(4096)
def name_parts(name: str) -> tuple[str, list[str]]:
    r"""A name as a symbol and its subscripts: ``x-max`` is ``x`` and ``\text{max}``, ``b1̄`` ``\bar{b}`` and ``1``."""
    plain = unicodedata.normalize("NFD", name)
    bars, dots = plain.count(MACRON), plain.count(DOT)
    plain = unicodedata.normalize("NFC", plain.replace(MACRON, "").replace(DOT, ""))
    head, *rest = [part for part in re.split("[-_]", plain) if part] or [plain]
    found = _NAME.fullmatch(head)
    letters = found[1] if found else ""
    symbol = letters if len(letters) == 1 and letters.isascii() else greek(letters) if letters else None
    if symbol is None and letters and all(part.isdigit() for part in rest):
        symbol = rf"\mathrm{{{letters}}}"
    if symbol is None or found is None:
        symbol, below = rf"\text{{{escaped(plain)}}}", []
    else:
        below = [part if part.isdigit() else rf"\text{{{escaped(part)}}}" for part in rest]
        below = [found[2], *below] if found[2] else below
    for mark, times in (("bar", bars), ("dot", dots)):
        for _ in range(times):
            symbol = rf"\{mark}{{{symbol}}}"
    return symbol, below


def latex_name(name: str) -> str:
    symbol, below = name_parts(name)
    return f"{symbol}_{{{','.join(below)}}}" if below else symbol


def latex_number(value: Any) -> str:
    if isinstance(value, bool):
        return rf"\mathrm{{{str(value).lower()}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return r"\mathrm{NaN}" if value != value else r"\infty" if value > 0 else r"-\infty"
    digits, _, exponent = repr(value).removesuffix(".0").partition("e")
    if not exponent:
        return digits
    power = f"10^{{{int(exponent)}}}"
    return power if digits == "1" else rf"{digits} \cdot {power}"


LOGIC, COMPARISON, ADD, MUL, POWER, ATOM = range(6)
INFIX = {
    "+": ("{} + {}", ADD, ADD, MUL),
    "-": ("{} - {}", ADD, ADD, MUL),
    "%": (r"{} \bmod {}", ADD, MUL, MUL),
    "<": ("{} < {}", COMPARISON, ADD, ADD),
    "<=": (r"{} \le {}", COMPARISON, ADD, ADD),
    ">": ("{} > {}", COMPARISON, ADD, ADD),
    ">=": (r"{} \ge {}", COMPARISON, ADD, ADD),
    "=": ("{} = {}", COMPARISON, ADD, ADD),
    "==": ("{} = {}", COMPARISON, ADD, ADD),
    "!=": (r"{} \ne {}", COMPARISON, ADD, ADD),
    "in": (r"0 \le {} < {}", COMPARISON, ADD, ADD),
    "and": (r"{} \land {}", LOGIC, COMPARISON, COMPARISON),
    "or": (r"{} \lor {}", LOGIC, COMPARISON, COMPARISON),
    "/": (r"\frac{{{}}}{{{}}}", ATOM, LOGIC, LOGIC),
    "//": (r"\left\lfloor\frac{{{}}}{{{}}}\right\rfloor", ATOM, LOGIC, LOGIC),
}
WRAPPED = {
    "sqrt": r"\sqrt{{{}}}",
    "cbrt": r"\sqrt[3]{{{}}}",
    "abs": r"\left|{}\right|",
    "floor": r"\left\lfloor {} \right\rfloor",
    "ceil": r"\left\lceil {} \right\rceil",
}
CALLED = {"log": r"\ln", "log2": r"\log_{2}", "log10": r"\log_{10}", "gamma": r"\Gamma", "digamma": r"\psi"}
CALLED |= {"sigmoid": r"\sigma", "asin": r"\arcsin", "acos": r"\arccos", "atan": r"\arctan"}
CALLED |= {name: "\\" + name for name in "sin cos tan sinh cosh tanh min max".split()}


class _Latex:
    def __init__(self, names: dict[Var, str]) -> None:
        self.names = names

    def ref(self, r: Ref) -> str:
        symbol, below = name_parts(self.names.get(r.var, r.var.name))
        text = f"{symbol}_{{{','.join(below)}}}" if below else symbol
        if r.indices:
            text = f"{{{text}}}" if below else text
            text += f"_{{{','.join(self.write(i) for i in r.indices)}}}"
        return text if r.step is None else f"{text}^{{({self.write(r.step)})}}"

    def write(self, e: Any, outer: int = LOGIC) -> str:
        """An expression; in parentheses if it binds less tightly than ``outer``."""
        text, level = self.form(e)
        return rf"\left({text}\right)" if level < outer else text

    def commas(self, items: Sequence[Any]) -> str:
        return rf"\left({', '.join(self.write(a) for a in items)}\right)"

    def form(self, e: Any) -> tuple[str, int]:
        if isinstance(e, Ref):
            return self.ref(e), ATOM if e.step is None else POWER
        if isinstance(e, Const):
            text = latex_number(e.value)
            return text, ADD if text[0] == "-" else MUL if "cdot" in text else POWER if "^" in text else ATOM
        if isinstance(e, Sum):
            top = self.write(plus(e.count, -1))
            return rf"\sum_{{{self.ref(Ref(e.index))}=0}}^{{{top}}} {self.write(e.term, MUL)}", ADD
        name, args = e.name, e.args
        if name == "neg":
            return f"-{self.write(args[0], MUL)}", ADD
        if name == "*":
            if isinstance(args[0], Ref) and self.same(*args):
                return f"{self.write(args[0], ATOM)}^{{2}}", POWER
            left, right = self.write(args[0], MUL), self.write(args[1], MUL)
            return rf"{left} \cdot {right}" if right[0].isdigit() else rf"{left}\,{right}", MUL
        if name == "square":
            return f"{self.write(args[0], ATOM)}^{{2}}", POWER
        if name == "**":
            return f"{self.write(args[0], ATOM)}^{{{self.write(args[1])}}}", POWER
        if name == "exp":
            return f"e^{{{self.write(args[0])}}}", POWER
        if name == "not":
            return rf"\lnot {self.write(args[0], ATOM)}", COMPARISON
        if name == "cases":
            lines = rf"{self.write(args[1])} & \text{{if }} {self.write(args[0])} \\ {self.write(args[2])}"
            return rf"\begin{{cases}} {lines} & \text{{otherwise}} \end{{cases}}", ATOM
        if name == "add-at":
            unit = f"e_{{{','.join(self.write(i) for i in args[1:-1])}}}"
            return rf"{self.write(args[0], ADD)} + {self.write(args[-1], MUL)}\,{unit}", ADD
        if name == "update":
            at = ",".join(self.write(i) for i in args[1:-1])
            return rf"{self.write(args[0], ATOM)}\left[{at} \mapsto {self.write(args[-1])}\right]", ATOM
        if name in ("array", "tuple"):
            return self.commas(args), ATOM
        if name == "match":
            rows = [rf"{self.write(x)} & \text{{if }} {self.write(c)}" for c, x in zip(args[::2], args[1::2])]
            lines = r" \\ ".join(rows)
            return rf"\begin{{cases}} {lines} \end{{cases}}", ATOM
        if name == "first":
            return rf"\min\left\{{{self.write(args[0])} : {self.write(args[1])}\right\}}", ATOM
        if name == "zeros":
            return r"\mathbf{0}", ATOM
        if name == "undef":
            return r"\bot", ATOM
        if name == "get":
            return f"{self.write(args[0], ATOM)}_{{{','.join(self.write(i) for i in args[1:])}}}", ATOM
        if name in INFIX:
            pattern, level, left, right = INFIX[name]
            return pattern.format(self.write(args[0], left), self.write(args[1], right)), level
        if name in WRAPPED:
            return WRAPPED[name].format(self.write(args[0])), ATOM
        head = CALLED.get(name) or rf"\operatorname{{{escaped(name)}}}"
        return head + self.commas(args), ATOM

    def same(self, a: Any, b: Any) -> bool:
        return isinstance(b, Ref) and self.ref(a) == self.ref(b)

    def equation(self, e: Equation) -> str:
        if e.left is None:
            line = rf"& \text{{requires }} {self.write(e.right)}"
        else:
            line = f"{self.write(e.left)} &= {self.write(e.right)}"
        notes = [rf"{self.ref(Ref(i))} = 0, \dots, {self.write(plus(n, -1))}" for i, n in e.ranges]
        for c, holds in e.conditions:
            notes.append(rf"\text{{if }} {self.write(c if holds else Apply('not', (c,)))}")
        return line + (r" \qquad " + r",\ ".join(notes) if notes else "")


def structure(tree: Tree, results: Any) -> Any:
    """The result as its tuples have it."""
    if isinstance(tree, Leaf):
        return next(results)
    return Apply("tuple", tuple(structure(t, results) for t in tree.items))


def latex(program: Program) -> str:
    r"""A program as LaTeX: an ``aligned`` environment (of amsmath) with an equation for every definition, the last
    one for the result. To be set between ``\[`` and ``\]``."""

    def write() -> str:
        listing = Listing(program)
        printer = _Latex(variable_names(program))
        lines = [printer.equation(e) for e in listing.equations]
        params = ", ".join(printer.ref(Ref(p)) for p in program.params)
        result = printer.write(structure(program.out, iter(listing.results)))
        lines.append(rf"{latex_name(program.name)}\left({params}\right) &= {result}")
        return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"

    return deep(write)


# ----------------------------------------------------------------------------------------------- SymPy


class _SymPy:
    def __init__(self, names: dict[Var, str]) -> None:
        self.names: dict[Var, str] = {}
        taken: set[str] = set()
        for var, name in names.items():  # x-max would read as a difference
            name = name.replace("-", "_")
            while name in taken:
                name += "_"
            taken.add(name)
            self.names[var] = name
        self.indices: dict[Var, Any] = {}

    def ref(self, r: Ref) -> Any:
        import sympy

        if r.var in self.indices:
            return self.indices[r.var]
        name = self.names.get(r.var, r.var.name)
        below = [self.write(i) for i in ((r.step,) if r.step is not None else ()) + r.indices]
        if below:
            return sympy.Indexed(sympy.IndexedBase(name), *below)
        if r.var.type == BOOL or isinstance(r.var.type, (Arr, Data)):
            return sympy.Symbol(name)
        return sympy.Symbol(name, integer=True) if r.var.type == INT else sympy.Symbol(name, real=True)

    def write(self, e: Any) -> Any:
        import sympy

        if isinstance(e, Ref):
            return self.ref(e)
        if isinstance(e, Const):
            if isinstance(e.value, bool):
                return sympy.true if e.value else sympy.false
            whole = math.isfinite(e.value) and float(e.value).is_integer() and abs(e.value) < 1 << 53
            return sympy.Integer(int(e.value)) if whole else sympy.Float(e.value)
        if isinstance(e, Sum):
            index = self.index(e.index, e.count)
            return sympy.Sum(self.write(e.term), (index, 0, self.write(plus(e.count, -1))))
        args = [self.write(a) for a in e.args]
        if e.name in ("and", "or", "not"):
            args = list(map(self.truth, args))
        if e.name == "cases":
            return sympy.Piecewise((args[1], self.truth(args[0])), (args[2], True))
        if e.name == "match":
            return sympy.Piecewise(*zip(args[1::2], map(self.truth, args[::2])))
        if e.name in ("tuple", "array"):
            return sympy.Tuple(*args)
        row = PRIMITIVES.get(e.name)
        if row is not None and row.sympy is not None:
            return sympy_form(row, *args)
        return sympy.Function(e.name.replace("-", "_"))(*args)

    def truth(self, value: Any) -> Any:
        """A condition: an element of an array is a number to SymPy, which is not 0 where it holds."""
        import sympy

        return sympy.Ne(value, 0) if isinstance(value, sympy.Indexed) else value

    def index(self, var: Var, count: Any) -> Any:
        import sympy

        if var not in self.indices:
            self.indices[var] = sympy.Idx(self.names.get(var, var.name), self.write(count))
        return self.indices[var]


def to_sympy(program: Program) -> list[Any]:
    """A program as SymPy equations, one a definition, the results last.

    Arrays are ``Indexed`` (an accumulator's number of iterations comes first), loop indices ``Idx`` with their
    ranges, choices ``Piecewise``. SymPy evaluates what it builds: its ``x/x`` is 1, which is not what the program
    does at 0. Checks are left out.
    """
    import sympy

    def write() -> list[Any]:
        listing = Listing(program)
        printer = _SymPy(variable_names(program))
        made = []
        for e in listing.equations:
            for i, count in e.ranges:
                printer.index(i, count)
            if e.left is not None:
                made.append(sympy.Eq(printer.write(e.left), printer.write(e.right), evaluate=False))
        name = program.name.replace("-", "_")
        for k, r in enumerate(listing.results):
            single = len(listing.results) == 1
            left = sympy.Symbol(name) if single else sympy.Indexed(sympy.IndexedBase(name), k)
            made.append(sympy.Eq(left, printer.write(r), evaluate=False))
        return made

    return deep(write)


def system(program: Program) -> str:
    """A program as lines of text in SymPy's notation, a definition each: ``t = exp(-b2*x)``."""
    import sympy

    lines = []
    for e in to_sympy(program):
        indices = sorted(e.atoms(sympy.Idx) & e.lhs.atoms(sympy.Idx), key=str)
        tail = ", ".join(f"{i} = 0 .. {i.upper}" for i in indices)
        lines.append(f"{e.lhs} = {e.rhs}" + (f"    for {tail}" if tail else ""))
    return "\n".join(lines)
