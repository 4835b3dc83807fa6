"""What is left of reverse mode in the code of straight lines: nothing. Pairs, records, closures, references and known
data are gone from the C of generated first-order models, in every encoding; Myia's example is what a person writes."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Atom, Const, Prim, Program, Var, all_binds, functions_of
from hyad.program.primitives import PRIMITIVES
from hyad.program.values import ENCODINGS
from programs import NAMESPACE

COUNT = 24
OPERATIONS = (
    "(+ {} {})", "(- {} {})", "(* {} {})", "(* {} {})", "(/ {} (+ 2.0 (* {} {})))", "(sin {})", "(exp (tanh {}))",
    "(sqrt (+ 1.5 (* {0} {0})))", "(** {} 3)", "(** (+ 1.5 (tanh {})) (cos {}))", "(- {})", "(atan2 {} (+ 3.0 {}))",
)  # fmt: skip


class StraightLines(random.Random):
    """Draws models of x, y and a vector v: no branch, no loop, no recursion, no function that is a value."""

    def text(self) -> str:
        self.numbers = ["x", "y", "(get v 0)", "(get v 1)"]
        self.pairs: list[str] = []
        self.functions: list[tuple[str, int, int]] = []  # name, parameters, results
        bindings = [self.choice(self.KINDS)(self, k) for k in range(self.randrange(4, 12))]
        total = " ".join([*self.numbers[4:], *(f"(snd {p})" for p in self.pairs)] or ["x"])
        return f"(fn [x y #^ (Vec 2) v] (let [{' '.join(bindings)}] (+ {total} 0.0)))"

    def operation(self) -> str:
        form = self.choice(OPERATIONS)
        return form.format(*(self.number() for _ in range(form.count("{"))))

    def number(self) -> str:
        choices = [*self.numbers[-4:], self.choice(self.numbers)]
        choices += [f"(fst {p})" for p in self.pairs[-2:]]
        choices += [
            f"({f} {' '.join(self.choice(self.numbers) for _ in range(n))})" for f, n, out in self.functions if out == 1
        ]
        return self.choice(choices)

    def let(self, k: int) -> str:
        text = f"a{k} {self.operation()}"
        self.numbers.append(f"a{k}")
        return text

    def pair(self, k: int) -> str:
        text = f"p{k} #({self.operation()} {self.number()})"
        self.pairs.append(f"p{k}")
        return text

    def parts(self, k: int) -> str:
        """A pair, maybe a function's result, taken apart."""
        made = [
            f"({f} {' '.join(self.choice(self.numbers) for _ in range(n))})" for f, n, out in self.functions if out > 1
        ]
        text = f"#(b{k} c{k}) {self.choice([*self.pairs, *made, f'#({self.operation()} {self.number()})'])}"
        self.numbers += [f"b{k}", f"c{k}"]
        return text

    def function(self, k: int) -> str:
        params, outer = [f"u{k}", f"w{k}"][: self.randrange(1, 3)], (self.numbers, self.pairs)
        self.numbers, self.pairs = [*self.numbers[-3:], *params], []
        results = [self.operation() for _ in range(self.randrange(1, 3))]
        self.numbers, self.pairs = outer
        self.functions.append((f"f{k}", len(params), len(results)))
        body = results[0] if len(results) == 1 else f"#({' '.join(results)})"
        return f"f{k} (fn [{' '.join(params)}] {body})"

    def data(self, k: int) -> str:
        made = f"(Box {self.number()} {self.operation()} (Dot))"
        text = f"d{k} (match {made} (Dot) 0.0 (Ball m) m (Box m n q) (* m (sin n)))"
        self.numbers.append(f"d{k}")
        return text

    def sum(self, k: int) -> str:
        text = f"s{k} (case (inl {self.operation()}) (inl m) (* m {self.number()}) (inr n) n)"
        self.numbers.append(f"s{k}")
        return text

    def reference(self, k: int) -> str:
        text = (
            f"r{k} (let [r (ref {self.number()})] (do (set! r (* (deref r) {self.number()}))"
            f" (set! r (sin (deref r))) (+ (deref r) {self.number()})))"
        )
        self.numbers.append(f"r{k}")
        return text

    def array(self, k: int) -> str:
        text = f"g{k} (let [w [{self.number()} {self.operation()} x]] (* (get w 0) (get w 1) (get w -1)))"
        self.numbers.append(f"g{k}")
        return text

    KINDS = (let, let, pair, parts, function, function, data, sum, reference, array)


def code_of(c: str) -> str:
    """C without comments, includes and primitives that libm lacks."""
    bare = re.sub(r"/\*[\s\S]*?\*/|//.*|^#.*", "", c, flags=re.M)
    return re.sub(r"^static inline \w+ hyad_\w+\([^)]*\)\s*\{(.*\}$|[\s\S]*?^\})", "", bare, flags=re.M)


def traces(c: str) -> list[str]:
    """What a C file of a straight line must not have: data, functions handed on, memory of its own, functions that the
    model did not ask for, jumps."""
    code = code_of(c)
    words = "struct union enum typedef arena malloc tag record closure continuation cell goto while for if switch"
    found = [
        word for word in words.split() if re.search(rf"\b\w*{word}\w*\b" if len(word) > 4 else rf"\b{word}\b", code)
    ]
    if re.search(r"\(\s*\*\s*\w+\s*\)\s*\(", code):
        found.append("a function pointer")
    defined = re.findall(r"^[\w *]*?\b(\w+)\([^;{]*\)\s*\{", code, flags=re.M)
    if len(defined) != 1:
        found.append(f"{len(defined)} functions: {defined}")
    primitives = re.findall(r"^static inline \w+ (hyad_\w+)\(", c, flags=re.M)
    libm = {name for row in PRIMITIVES.values() for name in re.findall(r"\b([a-z]\w*)\(", str(row.c))}
    calls = set(re.findall(r"\b([A-Za-z_]\w*)\s*\(", code)) - {*defined, *libm, *primitives, "double", "return"}
    return found + [f"a call of {name}" for name in sorted(calls)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_no_trace_is_left(seed: int) -> None:
    text = StraightLines(seed).text()
    point = (0.7, -1.3, np.array([0.4, 1.1]))
    model = hyad.model(text, namespace=NAMESPACE)
    codes = []
    for encoding in ENCODINGS:
        f = hyad.value_and_grad(model, encoding=encoding).without("lesser-powers")  # which has branches
        source = str(hyad.show(f, "c", args=point))
        assert not traces(source), f"{encoding}: {text}\n{source}"
        codes.append(code_of(source))
        program = f.optimised(f.specs(point))
        assert not functions_of(program.body) and all(type(bind.op) is Prim for bind in all_binds(program.body))
    assert codes[1:] == codes[:1] * 2, text


def test_traces_are_noticed() -> None:
    """The same test finds what recursion, closures chosen at run time and branches leave."""
    recursive = "(fn [x #^ Int n] (letrec [p (fn [n] (if (= n 0) 1.0 (* x (sin (p (- n 1))))))] (p n)))"
    for encoding in ENCODINGS:
        found = traces(str(hyad.show(hyad.grad(recursive, encoding=encoding), "c", args=(1.1, 4))))
        assert {"struct", "arena"} <= set(found) and any("functions" in t for t in found), encoding
    pointers = "double f(double x) { double (*g)(double) = sin; return (*g)(x) + help(x); }"
    assert traces(pointers) == ["a function pointer", "a call of help"]


# ------------------------------------------------------------------------------------------ Myia's example

MYIA = "(fn [x y] (* (** x 3) (** y 4)))"
BY_HAND = "3 x x y**4", "4 x**3 y**3"  # the factors of each derivative, and nothing else
OPERATIONS_BY_HAND = {"*": 5, "x ** 3": 1, "y ** 4": 1, "y ** 3": 1}  # x ** 2 is a product


def derivatives(program: Program) -> tuple[Counter[str], list[list[str]]]:
    """The operations of a straight line of products and powers, and the factors of each result."""
    made: dict[Var, Prim] = {}
    count: Counter[str] = Counter()
    for bind in all_binds(program.body):
        assert type(bind.op) is Prim, "not a straight line"
        made[bind.vars[0]] = bind.op
        powers = bind.op.name == "**" and type(bind.op.args[1]) is Const
        count[f"{bind.op.args[0]} ** {bind.op.args[1].value}" if powers else bind.op.name] += 1

    def factors(a: Atom) -> list[str]:
        if type(a) is Const:
            return [format(a.value, "g")]
        op: Any = made.get(a)
        if op is None:
            return [a.name]
        if op.name == "**" and op.args[0] not in made:
            return [f"{op.args[0].name}**{op.args[1].value}"]
        return sorted(f for b in op.args for f in factors(b)) if op.name == "*" else [f"({op.name} ..)"]

    return count, [factors(r) for r in program.body.results]


def is_as_by_hand(program: Program) -> bool:
    count, found = derivatives(program)
    return count == OPERATIONS_BY_HAND and found == [sorted(text.split()) for text in BY_HAND]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_gradient_is_what_a_person_writes(encoding: str) -> None:
    """Myia's example (van Merrienboer et al. 2018, Fig. 1), operation for operation: the rest leaves no trace."""
    f = hyad.grad(MYIA, encoding=encoding)
    assert is_as_by_hand(f.optimised()), hyad.show(f, "optimised")
    code = code_of(str(hyad.show(f, "c")))
    lines = {line.strip() for line in code.splitlines() if "=" in line}
    assert lines == {
        "*x_bar = 3.0*(hyad_pow4(y)*(x*x));",
        "*y_bar = 4.0*(hyad_pow3(x)*hyad_pow3(y));",
    }


@pytest.mark.parametrize(
    "worse",
    [
        "#((* 3 (** x 2) (** y 4)) (/ (* 4 (** x 3) (** y 4)) y))",
        "#((* (+ (* x x) (* x x) (* x x)) (** y 4)) (* 4 (** x 3) (** y 3)))",
        "#((* 3 (* (** x 2) (** y 4))) (+ (* 2 (** x 3) (** y 3)) (* 2 (** y 3) (** x 3)) 0.0))",
    ],
)
def test_a_worse_gradient_is_noticed(worse: str) -> None:
    assert is_as_by_hand(
        hyad.model("(fn [x y] #((* 3 (* (** x 2) (** y 4))) (* 4 (* (** x 3) (** y 3)))))").optimised()
    )
    assert not is_as_by_hand(hyad.model(f"(fn [x y] {worse})").optimised())


def test_a_division_is_not_waited_for() -> None:
    """What a derivative divides late is multiplied by a reciprocal that is there; what comes early, and what a loop
    has in each iteration, is divided."""

    def quotients(text: str) -> tuple[int, int]:
        """Divisions of 1, and others."""
        source = hyad.compile(hyad.grad(hyad.model(text, namespace={})), target="c").cfunction.source
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)
        return len(re.findall(r"\b1\.0 ?/", code)), code.count("/") - len(re.findall(r"\b1\.0 ?/", code))

    late = "(fn [#^ Real x #^ Real y] (sin (/ (exp (sin x)) (+ 2.0 y))))"
    assert quotients(late) == (1, 1)  # exp(sin(x)) itself is divided as it was written
    early = "(fn [#^ Real x] (log (+ 2.0 (exp (sin x)))))"
    assert quotients(early) == (0, 1)
    loop = "(fn [#^ (Vec n) x] (sum (map (fn [a] (sin (/ (exp (sin a)) (+ 2.0 (* 1.5 a))))) x)))"
    assert quotients(loop)[0] == 0


CHAIN = "(fn [#^ (Vec {n}) x] (ifold (fn [s i] (+ s (exp (* (get x i) (get x (+ i 1)))))) 0.0 {last}))"


@pytest.mark.parametrize("n, at_the_end", [(4, True), (12, False)])
def test_rows_wait_for_the_end_where_registers_hold_them(n: int, at_the_end: bool) -> None:
    """Few numbers are stored in the order of memory, when all are there; many, each row when it is there."""
    f = hyad.hessian(hyad.model(CHAIN.format(n=n, last=n - 1), namespace={}))
    made = hyad.compile(f, target="c")
    places = [int(k) for k in re.findall(r"out\[(\d+)\] = ", made.source)]
    assert sorted(places) == list(range(n * n)) and (places == sorted(places)) == at_the_end
    x = np.linspace(0.3, 0.9, n)
    a, b = x[:-1], x[1:]
    e = np.exp(a * b)
    expected = np.diag(np.append(b * b * e, 0.0) + np.append(0.0, a * a * e))
    expected += np.diag(e * (1 + a * b), 1) + np.diag(e * (1 + a * b), -1)
    np.testing.assert_allclose(made(x), expected, rtol=1e-14)
