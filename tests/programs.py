"""Random well-typed programs of the whole language: closures, recursion, data, references, branches, arrays.

``Programs(random).text()`` is a model of the parameters ``PARAMS``, of every kind of data, or of those among them that
are asked for (a real among them); ``arguments`` draws values and directions for them. Every program ends, is smooth at
almost every point, and has a value that differences judge: recursion counts down or goes down a structure, a function
that is differentiated writes to nothing outside it (a difference would run it twice), kinks are at random places.
``random`` is a ``random.Random``, of a seed or of hypothesis, which then can shrink what it found.

A kind of value is a letter: R real, I index, V vector, P pair of reals, L list of reals, T tree of pairs with reals at
its leaves, S sum of a real and a pair, Q data of ``DEFINITIONS``, F function of a real, Z reference to a real.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import hyad

DEFINITIONS = "(defdata Form (Dot) (Ball radius) (Box width height inside))"
Form = hyad.defdata("Form", ["Dot"], ["Ball", "radius"], ["Box", "width", "height", "inside"])
NAMESPACE = {"Form": Form, **{c.name: c for c in Form.constructors}}

PARAMS = {"x": "R", "y": "R", "v": "V", "p": "P", "l": "L", "t": "T", "s": "S", "q": "Q"}
UNARY = (
    "(sin {})", "(cos {})", "(tanh {})", "(exp (tanh {}))", "(sqrt (+ 1.5 (* {0} {0})))", "(log (+ 1.25 (square {})))",
    "(- {})", "(* 0.5 {})", "(** (sin {}) 3)", "(abs {})", "(/ 1.0 (+ 2.0 (cos {})))", "(atan {})", "(* {} 1.0)",
)  # fmt: skip
BINARY = (
    "(+ {} {})", "(- {} {})", "(* {} {})", "(* {} {})", "(/ {} (+ 1.5 (square {})))", "(max {} (+ 0.0137 {}))",
    "(min {} (- {} 0.0091))",
    "(* (sin {}) {})", "(+ {} {} 0.5)", "(** (+ 1.5 (tanh {})) (cos {}))",
)  # fmt: skip
VALUES = {
    "V": "[0.5 -0.25]", "P": "#(0.5 1.25)", "L": "(list 0.5)", "T": "(cons 0.5 1.25)", "S": "(inl 0.5)",
    "Q": "(Ball 0.5)",
}  # fmt: skip
Env = dict[str, str]


class Programs:
    """Draws the text of expressions. ``env`` maps visible names to kinds; ``Z`` may be written, ``z`` only read."""

    def __init__(self, draw: random.Random | int, depth: int | None = None, params: str = " ".join(PARAMS)) -> None:
        self.params = {name: PARAMS[name] for name in params.split()}
        self.random = random.Random(draw) if isinstance(draw, int) else draw
        self.fresh = 0
        self.order = 0  # of derivatives around
        self.depth = self.random.choice([3, 4, 4, 5]) if depth is None else depth

    def text(self) -> str:
        return f"(fn [{' '.join(self.params)}] {self.real(dict(self.params), self.depth)})"

    # ------------------------------------------------------------------------------------ drawing

    def pick(self, *choices: Any) -> Any:
        return choices[self.random.randrange(len(choices))]

    def name(self, stem: str = "a") -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def known(self, env: Env, kinds: str) -> list[str]:
        return [n for n, k in env.items() if k in kinds]

    def literal(self) -> str:
        """A number that no argument is: a program has no derivative where it compares one with itself."""
        return f"{self.random.uniform(-2, 2):.2f}05"

    def of(self, kind: str, env: Env, d: int) -> str:
        makers = {"R": self.real, "V": self.vector, "P": self.pair, "L": self.list, "T": self.tree, "S": self.sum}
        return {**makers, "Q": self.data, "F": self.function}[kind](env, d)

    def pure(self, env: Env) -> Env:
        """What a function may see: it reads references and writes none."""
        return {n: "z" if k == "Z" else k for n, k in env.items()}

    def variable(self, env: Env, kind: str) -> str | None:
        """A visible name of a kind, or a small value of it; None of a function."""
        names = self.known(env, kind)
        return self.pick(*names, names[-1]) if names else VALUES.get(kind)

    # ------------------------------------------------------------------------------------ reals

    def real(self, env: Env, d: int) -> str:
        if d <= 0 or self.random.randrange(12) == 0:
            return self.leaf(env)
        forms = [
            self.unary, self.binary, self.binary, self.let, self.branch, self.call, self.call, self.counting,
            self.mutual, self.down_a_list, self.down_a_tree, self.down_data, self.case, self.match, self.parts,
            self.reference, self.loop, self.kept_closure, self.array, self.fold, self.functions_in_data,
            self.continuation, self.object,
        ]  # fmt: skip
        if self.order < 2 and d > 1:
            forms += [self.derivative, self.derivative, self.gradient, self.pointwise, self.operator]
        return self.pick(*forms)(env, d - 1)

    def leaf(self, env: Env) -> str:
        roll = self.random.randrange(20)
        if roll == 0:
            return self.literal()
        if roll == 1:
            return self.pick("1", "2", "0", "1.0")
        if roll <= 4 and self.known(env, "Zz"):
            return f"(deref {self.variable(env, 'Zz')})"
        if roll <= 6:
            return f"(get {self.variable(env, 'V')} {self.index(env)})"
        if roll == 7:
            return f"({self.pick('fst', 'snd')} {self.variable(env, 'P')})"
        local = [n for n in self.known(env, "R") if n not in PARAMS]
        return self.pick(*local, local[-1]) if local and roll < 16 else self.pick(*self.known(env, "R"))

    def index(self, env: Env) -> str:
        return self.pick("0", "-1", "1", *(f"(% {i} 2)" for i in self.known(env, "I")))

    def small(self, env: Env) -> str:
        """A count, from 0 to 3."""
        counters = self.known(env, "I")
        return self.pick("0", "1", "2", "3", "2", "3", *(f"(% {i} 3)" for i in counters))

    def truth(self, env: Env, d: int) -> str:
        roll = self.random.randrange(10)
        if roll == 0 and self.known(env, "I"):
            return f"(= (% {self.variable(env, 'I')} 2) 0)"
        if roll == 1:
            return f"(null? {self.list(env, 0)})"
        if roll == 2:
            return f"(num? {self.tree(env, 0)})"
        if roll == 3 and d > 0:
            return f"({self.pick('and', 'or')} {self.truth(env, d - 1)} {self.truth(env, d - 1)})"
        return f"({self.pick('<', '>', '<=', '>=')} {self.real(env, min(d, 1))} {self.literal()})"

    def unary(self, env: Env, d: int) -> str:
        return self.pick(*UNARY).format(self.real(env, d))

    def binary(self, env: Env, d: int) -> str:
        return self.pick(*BINARY).format(self.real(env, d), self.real(env, d))

    def let(self, env: Env, d: int) -> str:
        kind = self.pick(*"RRVPLTSQFF")
        a = self.name("f" if kind == "F" else "a")
        return f"(let [{a} {self.of(kind, env, d)}] {self.real({**env, a: kind}, d)})"

    def branch(self, env: Env, d: int) -> str:
        return f"(if {self.truth(env, d)} {self.real(env, d)} {self.real(env, d)})"

    def call(self, env: Env, d: int) -> str:
        f = self.variable(env, "F")
        if f is None or self.random.randrange(3) == 0:
            a, b = self.name("f"), self.name()
            inner = f"(fn [{b}] {self.real({**self.pure(env), b: 'R'}, d)})"
            p, q = self.real({**env, a: "F"}, d - 1), self.real(env, d - 1)
            return f"(let [{a} {inner}] (+ ({a} {p}) ({a} ({a} {q}))))"
        return f"({f} {self.real(env, d)})"

    # ------------------------------------------------------------------------------------ recursion

    def counting(self, env: Env, d: int) -> str:
        """Recursion on a counter; sometimes in tail position, sometimes called twice."""
        f, n, a = self.name("rec"), self.name("n"), self.name()
        inner = {**self.pure(env), n: "I", a: "R"}
        again = f"({f} (- {n} 1) {self.real(inner, d - 1)})"
        step = self.pick(again, f"(tanh (+ {again} {self.real(inner, d - 1)}))", f"(* 0.5 {again} {a})",
                         f"(if {self.truth(inner, 0)} {again} (sin {again}))")  # fmt: skip
        body = f"(fn [{n} {a}] (if (= {n} 0) {self.real(inner, d - 1)} {step}))"
        return f"(letrec [{f} {body}] ({f} {self.small(env)} {self.real(env, d - 1)}))"

    def mutual(self, env: Env, d: int) -> str:
        f, g, n, a = self.name("ev"), self.name("od"), self.name("n"), self.name()
        inner = {**self.pure(env), n: "I", a: "R"}

        def body(other: str) -> str:
            again = f"({other} (- {n} 1) {self.real(inner, d - 1)})"
            return f"(fn [{n} {a}] (if (= {n} 0) {self.real(inner, 0)} {self.pick(again, f'(sin {again})')}))"

        return f"(letrec [{f} {body(g)} {g} {body(f)}] ({f} {self.small(env)} {self.real(env, d - 1)}))"

    def down_a_list(self, env: Env, d: int) -> str:
        go, u, h, r = self.name("go"), self.name("u"), self.name(), self.name()
        inner = {**self.pure(env), u: "L", h: "R", r: "R"}
        rest = f"(let [{h} (car {u}) {r} ({go} (cdr {u}))] {self.real(inner, d)})"
        base = self.real(self.pure(env), 0)
        body = f"(fn [{u}] (if (null? {u}) {base} {rest}))"
        return f"(letrec [{go} {body}] ({go} {self.list(env, d)}))"

    def down_a_tree(self, env: Env, d: int) -> str:
        go, u, a, b = self.name("go"), self.name("u"), self.name(), self.name()
        at_leaf = self.real({**self.pure(env), a: "R"}, d)
        node = self.real({**self.pure(env), a: "R", b: "R"}, d)
        both = f"(let [{a} ({go} (fst {u})) {b} ({go} (snd {u}))] {node})"
        body = f"(fn [{u}] (if (num? {u}) (let [{a} {u}] {at_leaf}) {both}))"
        return f"(letrec [{go} {body}] ({go} {self.tree(env, d)}))"

    def down_data(self, env: Env, d: int) -> str:
        go, u, w, h, i = self.name("go"), self.name("u"), self.name(), self.name(), self.name("q")
        pure = self.pure(env)
        box = f"(let [{w} (+ {w} ({go} {i}))] {self.real({**pure, w: 'R', h: 'R', i: 'Q'}, d)})"
        arms = f"(Dot) {self.real(pure, 0)} (Ball {w}) {self.real({**pure, w: 'R'}, d)} (Box {w} {h} {i}) {box}"
        return f"(letrec [{go} (fn [{u}] (match {u} {arms}))] ({go} {self.data(env, d)}))"

    def continuation(self, env: Env, d: int) -> str:
        go, u, k, a, b = self.name("go"), self.name("u"), self.name("k"), self.name(), self.name()
        pure = self.pure(env)
        at_leaf = self.real({**pure, a: "R"}, d - 1)
        join = self.real({**pure, a: "R", b: "R"}, d - 1)
        node = f"({go} (fst {u}) (fn [{a}] ({go} (snd {u}) (fn [{b}] ({k} {join})))))"
        body = f"(fn [{u} {k}] (if (num? {u}) (let [{a} {u}] ({k} {at_leaf})) {node}))"
        return f"(letrec [{go} {body}] ({go} {self.tree(env, d)} {self.function(env, d - 1)}))"

    # ------------------------------------------------------------------------------------ data

    def case(self, env: Env, d: int) -> str:
        a, p = self.name(), self.name("p")
        left, right = self.real({**env, a: "R"}, d), self.real({**env, p: "P"}, d)
        return f"(case {self.sum(env, d)} (inl {a}) {left} (inr {p}) {right})"

    def match(self, env: Env, d: int) -> str:
        a, b, q = self.name(), self.name(), self.name("q")
        if self.random.randrange(3) == 0:
            return f"(match {self.data(env, d)} (Ball {a}) {self.real({**env, a: 'R'}, d)} _ {self.real(env, d)})"
        box = self.real({**env, a: "R", b: "R", q: "Q"}, d)
        ball = self.real({**env, a: "R"}, d)
        return f"(match {self.data(env, d)} (Dot) {self.real(env, d)} (Ball {a}) {ball} (Box {a} {b} {q}) {box})"

    def parts(self, env: Env, d: int) -> str:
        a, b = self.name(), self.name()
        return f"(let [#({a} {b}) {self.pair(env, d)}] {self.real({**env, a: 'R', b: 'R'}, d)})"

    def functions_in_data(self, env: Env, d: int) -> str:
        f, g, e = self.function(env, d), self.function(env, d - 1), self.real(env, d - 1)
        s, h = self.name(), self.name("f")
        return self.pick(
            f"((get #({f} {g}) {self.pick(0, 1)}) {e})",
            f"((car (cdr (list {g} {f}))) {e})",
            f"(fold (fn [{s} {h}] ({h} {s})) {e} (list {f} {g} sin))",
            f"(case (if {self.truth(env, 0)} (inl {f}) (inr {g})) (inl {h}) ({h} {e}) (inr {h}) ({h} ({h} {e})))",
            f"((get [{f} {g}] {self.index(env)}) {e})",
            f"(fold (fn [{s} {h}] (+ {s} ({h} {s}))) {e} (map (fn [{h}] (fn [{s}] ({h} (* 0.5 {s})))) (list {f} {g})))",
        )

    def fold(self, env: Env, d: int) -> str:
        s, a, i = self.name(), self.name(), self.name("i")
        inner = {**self.pure(env), s: "R", a: "R"}
        if self.random.randrange(2):
            kind = self.pick("V", "L")
            return f"(fold (fn [{s} {a}] (tanh {self.real(inner, d)})) {self.real(env, d - 1)} {self.of(kind, env, d)})"
        step = self.real({**self.pure(env), s: "R", i: "I"}, d)
        return f"(ifold (fn [{s} {i}] (sin {step})) {self.real(env, d - 1)} {self.small(env)})"

    # ------------------------------------------------------------------------------------ state

    def write(self, env: Env, d: int) -> str:
        """A statement that writes to a reference."""
        z = self.variable(env, "Z")
        e = self.pick(*UNARY[:4]).format(self.real(env, d))
        if self.random.randrange(4) == 0:
            return f"(when {self.truth(env, 0)} (set! {z} {e}))"
        return f"(set! {z} {e})"

    def reference(self, env: Env, d: int) -> str:
        z, w = self.name("z"), self.name("z")
        env = {**env, z: "Z"}
        first = "" if self.random.randrange(2) else f" {w} {z}"  # another name of the same
        if first:
            env[w] = "Z"
        writes = " ".join(self.write(env, d - 1) for _ in range(self.pick(1, 2, 2)))
        return f"(let [{z} (ref {self.real(env_without(env, z, w), d - 1)}){first}] {writes} {self.real(env, d)})"

    def loop(self, env: Env, d: int) -> str:
        z, c = self.name("z"), self.name("c")
        inner = {**env, z: "Z"}
        writes = " ".join(self.write(inner, d - 1) for _ in range(self.pick(1, 1, 2)))
        if self.random.randrange(3) == 0:  # a loop whose body makes a closure
            a = self.name()
            writes += f" (let [{a} (deref {z})] (set! {z} ((fn [b] (sin (+ {a} b))) {self.real(env, d - 1)})))"
        count = f"(< (deref {c}) {self.small(env)})"
        start = self.real(env, d - 1)
        return (
            f"(let [{z} (ref {start}) {c} (ref 0)]"
            f" (while {count} {writes} (set! {c} (+ (deref {c}) 1))) {self.real(inner, d - 1)})"
        )

    def kept_closure(self, env: Env, d: int) -> str:
        r, g, b = self.name("r"), self.name("f"), self.name()
        better = self.real({**self.pure(env), g: "F", b: "R"}, d)
        return (
            f"(let [{r} (ref {self.function(env, d - 1)})]"
            f" (set! {r} (let [{g} (deref {r})] (fn [{b}] {better}))) ((deref {r}) {self.real(env, d - 1)}))"
        )

    def object(self, env: Env, d: int) -> str:
        """Closures over a state of their own."""
        make, z, by, one, two = (self.name(n) for n in ("make", "z", "by", "one", "two"))
        step = self.real({**self.pure(env), z: "z", by: "R"}, d - 1)
        maker = f"(fn [{by}] (let [{z} (ref {by})] (fn [{by}] (set! {z} (sin {step})) (deref {z}))))"
        a, b = self.real(env, d - 1), self.real(env, d - 1)
        return (
            f"(let [{make} {maker} {one} ({make} {a}) {two} ({make} {b})]"
            f" ({one} {b}) ({two} ({one} {a})) (+ ({one} 0.5) ({two} 1.5)))"
        )

    def array(self, env: Env, d: int) -> str:
        w, u = self.name("w"), self.name("w")
        inner = {**env, w: "V"}
        writes = " ".join(
            f"(set-at! {self.pick(w, u)} {self.index(env)} (tanh {self.real({**inner, u: 'V'}, d - 1)}))"
            for _ in range(self.pick(1, 2, 3))
        )
        other = self.pick(w, f"(copy {w})")
        return f"(let [{w} (copy {self.vector(env, d)}) {u} {other}] {writes} {self.real({**inner, u: 'V'}, d)})"

    # ------------------------------------------------------------------------------------ derivatives

    def inside(self, env: Env, params: Env, d: int) -> str:
        self.order += 1
        body = self.real({**self.pure(env), **params}, d)
        self.order -= 1
        return body

    def derivative(self, env: Env, d: int) -> str:
        a = self.name()
        f = f"(fn [{a}] {self.inside(env, {a: 'R'}, d)})"
        at, by = self.real(env, d - 1), self.leaf(env)
        return self.pick(
            f"((D {f}) {at})", f"((grad {f}) {at})", f"(jvp {f} {at} {by})", f"(vjp {f} {at} {by})",
            f"(snd ((value-and-grad {f}) {at}))", f"((jacobian {f}) {at})", f"((D (grad {f})) {at})",
            f"((hessian {f}) {at})" if d < 3 else f"((D {f}) {at})",
        )  # fmt: skip

    def gradient(self, env: Env, d: int) -> str:
        """The gradient by a structure, read as one."""
        kind = self.pick(*"VPLTSQ")
        a, g = self.name(kind.lower()), self.name("g")
        f = f"(fn [{a}] {self.inside(env, {a: kind}, d)})"
        at = self.of(kind, env, d - 1)
        ways = f"((grad {f}) {at})", f"(vjp {f} {at} {self.leaf(env)})", f"(get ((value-and-grad {f}) {at}) 1)"
        made = self.pick(*ways)
        return f"(let [{g} {made}] {self.real({**env, g: kind}, d - 1)})"

    def pointwise(self, env: Env, d: int) -> str:
        """The derivative of a function that gives a function."""
        a, b = self.name(), self.name()
        f = f"(fn [{a}] (fn [{b}] {self.inside(env, {a: 'R', b: 'R'}, d)}))"
        x, y = self.real(env, d - 1), self.real(env, 0)
        return self.pick(
            f"(((D {f}) {x}) {y})", f"((snd ((D (fn [{a}] #({a} ({f} {a})))) {x})) {y})", f"((jvp {f} {x} {y}) {y})"
        )

    def operator(self, env: Env, d: int) -> str:
        """An operator that is a value: chosen by a branch, kept in a list, applied as often as a counter says."""
        a, n, g, lp = self.name(), self.name("n"), self.name("f"), self.name("lp")
        f = f"(fn [{a}] {self.inside(env, {a: 'R'}, d - 1)})"
        at = self.real(env, d - 1)
        again = f"(fn [{n} {g}] (if (= {n} 0) {g} ({lp} (- {n} 1) (D {g}))))"
        often = f"(letrec [{lp} {again}] ({lp} {self.pick(0, 1, 2)} {f}))"
        return self.pick(
            f"(((if {self.truth(env, 0)} D grad) {f}) {at})",
            f"(((car (list grad D)) {f}) {at})",
            f"({often} {at})",
        )

    # ------------------------------------------------------------------------------------ other kinds

    def function(self, env: Env, d: int) -> str:
        f = self.variable(env, "F")
        roll = self.random.randrange(6)
        if roll == 0 and f:
            return f
        if roll == 1:
            return self.pick("sin", "tanh", "cos")
        if roll == 2 and d > 0:
            return f"(if {self.truth(env, 0)} {self.function(env, d - 1)} {self.function(env, d - 1)})"
        b = self.name()
        return f"(fn [{b}] {self.real({**self.pure(env), b: 'R'}, d)})"

    def vector(self, env: Env, d: int) -> str:
        if d <= 0:
            return self.variable(env, "V")  # type: ignore[return-value]
        a, i = self.name(), self.name("i")
        return self.pick(
            self.variable(env, "V"),
            f"[{self.real(env, d - 1)} {self.real(env, d - 1)}]",
            f"(map (fn [{a}] {self.real({**self.pure(env), a: 'R'}, d - 1)}) {self.vector(env, d - 1)})",
            f"(build 2 (fn [{i}] {self.real({**self.pure(env), i: 'I'}, d - 1)}))",
            f"(update {self.vector(env, d - 1)} {self.index(env)} {self.real(env, d - 1)})",
            f"(* {self.real(env, d - 1)} {self.variable(env, 'V')})",
        )

    def pair(self, env: Env, d: int) -> str:
        if d <= 0:
            return self.variable(env, "P")  # type: ignore[return-value]
        f = self.name("p")
        swap = f"((fn [{f}] #((snd {f}) (fst {f}))) {self.pair(env, d - 1)})"
        made = f"#({self.real(env, d - 1)} {self.real(env, d - 1)})"
        return self.pick(made, made, swap, f"(if {self.truth(env, 0)} {self.pair(env, d - 1)} {made})")

    def list(self, env: Env, d: int) -> str:
        name, a = self.variable(env, "L"), self.name()
        if d <= 0:
            return self.pick(name, "nil") if self.random.randrange(8) == 0 else name  # type: ignore[return-value]
        e = self.real(env, d - 1)
        return self.pick(
            name,
            f"(cons {e} {self.list(env, d - 1)})",
            f"(list {e} {self.real(env, d - 1)})",
            f"(map (fn [{a}] {self.real({**self.pure(env), a: 'R'}, d - 1)}) {self.list(env, d - 1)})",
        )

    def tree(self, env: Env, d: int) -> str:
        name = self.variable(env, "T")
        if d <= 0:
            return name  # type: ignore[return-value]
        one, other = self.tree(env, d - 1), self.tree(env, d - 2)
        go, u, a = self.name("go"), self.name("u"), self.name()
        each = self.real({**self.pure(env), a: "R"}, d - 1)
        mapped = (
            f"(letrec [{go} (fn [{u}] (if (num? {u}) (let [{a} {u}] {each}) (cons ({go} (fst {u})) ({go} (snd {u})))))]"
            f" ({go} {one}))"
        )
        return self.pick(name, f"(cons {one} {other})", self.real(env, d - 1), mapped)

    def sum(self, env: Env, d: int) -> str:
        if d <= 0:
            return self.variable(env, "S")  # type: ignore[return-value]
        left, right = f"(inl {self.real(env, d - 1)})", f"(inr {self.pair(env, d - 1)})"
        return self.pick(left, right, f"(if {self.truth(env, 0)} {left} {right})", self.variable(env, "S"))

    def data(self, env: Env, d: int) -> str:
        name = self.variable(env, "Q")
        if d <= 0:
            return name  # type: ignore[return-value]
        a, b = self.real(env, d - 1), self.real(env, d - 1)
        return self.pick(name, "(Dot)", f"(Ball {a})", f"(Box {a} {b} {self.data(env, d - 1)})")


def env_without(env: Env, *names: str) -> Env:
    return {n: k for n, k in env.items() if n not in names}


# ----------------------------------------------------------------------------------------- arguments


def arguments(
    draw: random.Random | int, params: str = " ".join(PARAMS)
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """A point and two directions of the parameters."""
    rng = random.Random(draw) if isinstance(draw, int) else draw

    def number() -> float:
        return round(rng.uniform(-1.2, 1.2), 3) or 0.125

    def tree(d: int) -> Any:
        return number() if d == 0 or rng.randrange(3) == 0 else (tree(d - 1), tree(d - 1))

    def data(d: int) -> Any:
        kind = rng.randrange(3) if d else rng.randrange(2)
        if kind == 2:
            return Form.Box(number(), number(), data(d - 1))
        return Form.Ball(number()) if kind else Form.Dot()

    side = hyad.inl(number()) if rng.randrange(2) else hyad.inr((number(), number()))
    items = hyad.lisp([number() for _ in range(rng.randrange(4))])
    vector = np.array([number() for _ in range(2)])
    every = (number(), number(), vector, (number(), number()), items, tree(2), side, data(2))
    point = tuple(value for name, value in zip(PARAMS, every) if name in params.split())
    return point, alike(point, number), alike(point, number)


def alike(value: Any, number: Any) -> Any:
    """A value of the same structure with other numbers."""
    if isinstance(value, np.ndarray):
        return np.array([number() for _ in value])
    if isinstance(value, tuple):
        return tuple(alike(x, number) for x in value)
    if hasattr(value, "__match_args__"):
        return type(value)(*(alike(x, number) for x in value))
    return number() if isinstance(value, float) else value
