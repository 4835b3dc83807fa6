"""Random well-typed programs: every target and every mode must agree with the oracle.

``Programs`` draws the text of a model of fixed parameters (reals, vectors of a dynamic and of a static size, a matrix,
an integer) from the whole language: loops with several accumulators, branches, builds, subscripts, closures, tuples,
derivatives inside. The seed is the program: a failure prints it, and ``HYAD_PROPERTY_PROGRAMS=2000`` draws more.
"""

from __future__ import annotations

import os
import random
from typing import Any

import mpmath
import numpy as np
import pytest

import batch
import hyad
import oracle
from hyad.plain_python import python_callable
from hyad.program.forms import read_forms, unparse
from hyad.program.printer import alpha_equal, print_lambda, print_program
from hyad.program.reader import read_model

COUNT = int(os.environ.get("HYAD_PROPERTY_PROGRAMS", "60"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0"))
CHUNK = 20
PARAMS = "x y #^ (Vec n) u #^ (Vec n) v #^ (Vec 3) w #^ (Mat n 3) m"
ACTIVE = 6  # the first parameters are differentiated; then comes #^ Int k
UNARY = [
    "(sin {})",
    "(cos {})",
    "(tanh {})",
    "(sigmoid {})",
    "(atan {})",
    "(exp (tanh {}))",
    "(sqrt (+ 1.5 (* {0} {0})))",
    "(log (+ 1.25 (square {})))",
    "(softplus {})",
    "(erf {})",
    "(- {})",
    "(* 0.5 {})",
    "(** (sin {}) 3)",
    "(abs {})",
    "(/ 1.0 (+ 2.0 (cos {})))",
    "(hypot {} 1.1)",
    "(** (tanh {}) 2)",
    "(expm1 (sin {}))",
    "(real (floor (* 0.1 {})))",
]
BINARY = [
    "(+ {} {})",
    "(- {} {})",
    "(* {} {})",
    "(* {} {})",
    "(/ {} (+ 1.5 (square {})))",
    "(max {} {})",
    "(min {} {})",
    "(atan2 {} (+ 2.0 (sin {})))",
    "(+ {} {} 0.5)",
    "(* (sin {}) {} 1.5)",
    "(** (+ 1.5 (tanh {})) (cos {}))",
]


class Programs:
    """Draws expressions. ``env`` maps visible names to types: ``R``, ``I`` (an index), ``V``/``W`` (vectors of size
    n and 3) and ``M``; ``limits`` says for an index which axis it is in range of."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fresh = 0
        self.depth = self.random.choice([3, 4, 4, 5])
        self.order = 0  # of derivatives around

    def text(self) -> str:
        env = {"x": "R", "y": "R", "u": "V", "v": "V", "w": "W", "m": "M"}
        body = self.real(env, self.depth)
        if self.random.random() < 0.3:
            body = f"(+ {body} {self.real(env, self.depth)})"
        return f"(fn [{PARAMS} #^ Int k] {body})"

    def name(self, env: dict[str, str]) -> str:
        if self.random.random() < 0.15:  # shadows what it likes, but keeps one of each type
            return self.random.choice([n for n in env if env[n] in "RVWM" and n not in "xuwm"])
        self.fresh += 1
        return f"{self.random.choice('abcdefgst')}{self.fresh}"

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def literal(self) -> str:
        return repr(round(self.random.uniform(-2, 2), 3))

    def known(self, env: dict[str, str], kind: str) -> list[str]:
        return [n for n, t in env.items() if t == kind]

    # --------------------------------------------------------------------------------------- integers

    def index(self, env: dict[str, str], axis: str) -> str:
        """An index in range of the axis n (``V``) or 3 (``W``)."""
        inside = self.known(env, "IV" if axis == "V" else "IW")
        size = "(len u)" if axis == "V" else "3"
        choices = [self.pick("0", "-1"), f"(- {size} 1)"] if axis == "V" else [self.pick("0", "1", "2", "-1", "-3")]
        for i in inside:
            choices += [i, i, f"(- {size} 1 {i})", f"(% (+ {i} {self.pick(1, 2)}) {size})"]
            choices.append(f"(if (< {i} 1) {i} (- {i} 1))")
            if axis == "W":
                choices.append(f"(% (* 2 {i}) 3)")
        return self.pick(*choices)

    def count(self, env: dict[str, str]) -> tuple[str, str]:
        """A trip count and the type of its index: a size, a number, k, or the index of a loop around."""
        outer = self.pick(*(self.known(env, "IV") or [""]))
        if outer and self.random.random() < 0.3:
            return self.pick((outer, "IV"), (f"(+ {outer} 1)", "IV"), (f"(- (len u) {outer})", "IV"))
        return self.pick(("(len u)", "IV"), ("(len u)", "IV"), ("3", "IW"), ("(len w)", "IW"), ("k", "I"), ("2", "IW"))

    # ----------------------------------------------------------------------------------------- truth

    def truth(self, env: dict[str, str], d: int) -> str:
        counters = [n for n, t in env.items() if t.startswith("I")]
        roll = self.random.random()
        if counters and roll < 0.4:
            i = self.pick(*counters)
            return self.pick(f"(= (% {i} 2) 0)", f"(> {i} 0)", f"(< {i} (- (len u) 1))", f"(!= {i} 1)")
        if roll < 0.5 and d > 0:
            return f"({self.pick('and', 'or')} {self.truth(env, d - 1)} {self.truth(env, d - 1)})"
        if roll < 0.55 and d > 0:
            return f"(not {self.truth(env, d - 1)})"
        return f"({self.pick('<', '>', '<=', '>=')} {self.real(env, min(d, 1))} {self.literal()})"

    # ----------------------------------------------------------------------------------------- reals

    def real(self, env: dict[str, str], d: int) -> str:
        if d <= 0 or self.random.random() < 0.08:
            return self.leaf(env)
        forms = [
            self.unary,
            self.binary,
            self.binary,
            self.let,
            self.branch,
            self.fold,
            self.loop,
            self.loops,
            self.reduce,
            self.rows,
            self.closure,
            self.higher,
            self.pair,
            self.shape,
            self.build_and_fold,
        ]
        if self.order < 2 and d > 1:
            forms += [self.derivative, self.gradient]
        return self.random.choice(forms)(env, d - 1)

    def leaf(self, env: dict[str, str]) -> str:
        roll = self.random.random()
        local = [n for n in list(env)[ACTIVE:] if env[n] == "R"]
        if local and roll < 0.6:
            return self.pick(*local, local[-1])
        roll = self.random.random()
        if roll < 0.05:
            return self.literal()
        if roll < 0.1:
            return self.pick("1", "2", "0", "1.0")
        if roll < 0.2:
            counters = [n for n, t in env.items() if t.startswith("I")] + ["k"]
            return f"(real {self.pick(*counters)})"
        if roll < 0.5:
            kind = self.pick("V", "W")
            known = self.known(env, kind)
            return f"(get {self.pick(*known, known[-1])} {self.index(env, kind)})"
        if roll < 0.58:
            return f"(get {self.pick(*self.known(env, 'M'))} {self.index(env, 'V')} {self.index(env, 'W')})"
        return self.pick(*self.known(env, "R"))

    def unary(self, env: dict[str, str], d: int) -> str:
        return self.random.choice(UNARY).format(self.real(env, d))

    def binary(self, env: dict[str, str], d: int) -> str:
        return self.random.choice(BINARY).format(self.real(env, d), self.real(env, d))

    def let(self, env: dict[str, str], d: int) -> str:
        kind = self.pick("R", "R", "V", "W", "M")
        a = self.name(env)
        value = self.of(kind, env, d)
        return f"(let [{a} {value}] {self.real({**env, a: kind}, d)})"

    def of(self, kind: str, env: dict[str, str], d: int) -> str:
        return {"R": self.real, "M": self.matrix}.get(kind, lambda e, k: self.vector(kind, e, k))(env, d)

    def branch(self, env: dict[str, str], d: int) -> str:
        if self.random.random() < 0.2:
            c = f"(cond {self.truth(env, d)} {self.real(env, d)}  {self.truth(env, d)} {self.real(env, d)}"
            return f"{c}  True {self.real(env, d)})"
        return f"(if {self.truth(env, d)} {self.real(env, d)} {self.real(env, d)})"

    def fold(self, env: dict[str, str], d: int) -> str:
        s, a = self.distinct(env, 2)
        kind = self.pick("V", "W")
        inner = {**env, s: "R", a: "R"}
        if self.random.random() < 0.3:
            return f"(fold {self.pick('+', '*', 'max')} {self.pick('0.5', '1.0', '1')} {self.vector(kind, env, d)})"
        body = self.pick(
            f"(+ {s} {self.real(inner, d)})", f"(tanh {self.real(inner, d)})", f"(- {self.real(inner, d)} {s})"
        )
        return f"(fold (fn [{s} {a}] {body}) {self.real(env, d)} {self.vector(kind, env, d)})"

    def distinct(self, env: dict[str, str], n: int) -> list[str]:
        names: list[str] = []
        while len(names) < n:
            a = self.name(env)
            if a not in names:
                names.append(a)
        return names

    def loop(self, env: dict[str, str], d: int) -> str:
        (s,) = self.distinct(env, 1)
        self.fresh += 1
        i = f"i{self.fresh}"
        n, kind = self.count(env)
        inner = {**env, s: "R", i: kind}
        e = self.real(inner, d)
        body = self.pick(f"(+ {s} {e})", f"(sin {e})", f"(* {s} (cos {e}))", e if d < 2 else f"(tanh {e})")
        return f"(ifold (fn [{s} {i}] {body}) {self.real(env, d)} {n})"

    def loops(self, env: dict[str, str], d: int) -> str:
        """Several accumulators of several kinds, used after the loop."""
        kinds = [self.pick("R", "R", "V", "W") for _ in range(self.pick(2, 2, 3))]
        accs = self.distinct(env, len(kinds))
        self.fresh += 1
        i = f"i{self.fresh}"
        n, kind = self.count(env)
        inner = {**env, **dict(zip(accs, kinds)), i: kind}
        steps = []
        for acc, k in zip(accs, kinds):
            e = self.of(k, inner, d - 1)
            if k == "R":
                steps.append(self.pick(f"(+ {acc} {e})", f"(sin {e})", f"(tanh {e})", acc))
            else:
                steps.append(self.pick(f"(map (fn [z] (sin z)) {e})", f"(+ {acc} {e})", f"(* 0.5 {e})", acc))
        start = " ".join(self.of(k, env, d - 1) for k in kinds)
        names = " ".join(accs)
        after = {**env, **dict(zip(accs, kinds))}
        looped = f"(ifold (fn [#({names}) {i}] #({' '.join(steps)})) #({start}) {n})"
        return f"(let [#({names}) {looped}] {self.real(after, d)})"

    def reduce(self, env: dict[str, str], d: int) -> str:
        k = self.pick("V", "W")
        a, b = self.vector(k, env, d), self.vector(k, env, d - 1)
        return self.pick(
            f"(dot {a} {b})", f"(sum {a})", f"(sq-norm {a})", f"(norm (+ 2.0 (tanh {a})))", f"(dot {a} {a})"
        )

    def rows(self, env: dict[str, str], d: int) -> str:
        s, r = self.distinct(env, 2)
        inner = {**env, s: "R", r: "W"}
        body = self.pick(f"(+ {s} {self.real(inner, d)})", f"(sin (+ {s} (dot {r} {self.vector('W', inner, d)})))")
        return f"(fold (fn [{s} {r}] {body}) {self.real(env, d - 1)} {self.matrix(env, d)})"

    def closure(self, env: dict[str, str], d: int) -> str:
        f, a, b = self.distinct(env, 3)
        body = self.real({**env, a: "R", b: "R"}, d)
        env = {**env, f: "F"}
        p, q, r = (self.real(env, d - 1) for _ in range(3))
        return f"(let [{f} (fn [{a} {b}] {body})] (+ ({f} {p} {q}) ({f} {r} {r})))"

    def higher(self, env: dict[str, str], d: int) -> str:
        a = self.name(env)
        g = f"(fn [{a}] {self.real({**env, a: 'R'}, d)})"
        if self.random.random() < 0.3:
            g = f"(if {self.truth(env, 0)} {g} {self.pick('sin', 'tanh')})"
        return f"((fn [g0 z0] (sin (g0 (g0 z0)))) {g} {self.real(env, d - 1)})"

    def pair(self, env: dict[str, str], d: int) -> str:
        a, b = self.distinct(env, 2)
        k = self.pick("R", "V", "W")
        one = f"#({self.real(env, d - 1)} {self.of(k, env, d - 1)})"
        other = f"#({self.real(env, d - 1)} {self.of(k, env, d - 1)})"
        value = self.pick(f"(if {self.truth(env, 1)} {one} {other})", one)
        return f"(let [#({a} {b}) {value}] {self.real({**env, a: 'R', b: k}, d)})"

    def shape(self, env: dict[str, str], d: int) -> str:
        return f"(* {self.pick('(len u)', '(get (shape m) 0)', '(len w)')} {self.real(env, d)} 0.5)"

    def build_and_fold(self, env: dict[str, str], d: int) -> str:
        i, a = f"i{self.fresh + 1}", f"q{self.fresh + 2}"
        self.fresh += 2
        n, kind = self.count(env)
        made = f"(build {n} (fn [{i}] #({self.real({**env, i: kind}, d)} {self.real({**env, i: kind}, d - 1)})))"
        return f"(fold (fn [s0 {a}] (+ s0 (* (fst {a}) (sin (snd {a}))))) 0.0 {made})"

    def derivative(self, env: dict[str, str], d: int) -> str:
        self.order += 1
        a = self.name(env)
        body = self.real({**env, a: "R"}, d)
        self.order -= 1
        f = f"(fn [{a}] {body})"
        at = self.real(env, d - 1)
        return self.pick(
            f"((D {f}) {at})",
            f"((grad {f}) {at})",
            f"(jvp {f} {at} {self.leaf(env)})",
            f"(vjp {f} {at} {self.leaf(env)})",
            f"((D (D {f})) {at})" if self.order == 0 and d < 2 else f"(snd ((value-and-grad {f}) {at}))",
        )

    def gradient(self, env: dict[str, str], d: int) -> str:
        self.order += 1
        k = self.pick("V", "W")
        a = self.name(env)
        body = self.real({**env, a: k}, d)
        self.order -= 1
        f = f"(fn [{a}] {body})"
        at, by = self.vector(k, env, d - 1), self.vector(k, env, 0)
        if self.random.random() < 0.2:
            g = f"(fn [{a}] (map (fn [z] (* z z (get {a} 0))) {a}))"
            return f"(sum (get ((jacobian {g}) {at}) {self.index(env, k)}))"
        return self.pick(
            f"(dot ((grad {f}) {at}) {by})", f"(jvp {f} {at} {by})", f"(sum (vjp {f} {at} {self.leaf(env)}))"
        )

    # --------------------------------------------------------------------------------------- vectors

    def vector(self, kind: str, env: dict[str, str], d: int) -> str:
        size, axis = ("(len u)", "IV") if kind == "V" else ("3", "IW")
        if d <= 0 or self.random.random() < 0.15:
            return self.pick(*self.known(env, kind), self.known(env, kind)[-1])
        d -= 1
        roll = self.random.randrange(13)
        self.fresh += 1
        i = f"i{self.fresh}"
        if roll == 0:
            return f"(build {size} (fn [{i}] {self.real({**env, i: axis}, d)}))"
        if roll == 1:
            a = self.name(env)
            return f"(map (fn [{a}] {self.real({**env, a: 'R'}, d)}) {self.vector(kind, env, d)})"
        if roll == 2:
            a, b = self.distinct(env, 2)
            body = self.real({**env, a: "R", b: "R"}, d)
            return f"(map (fn [{a} {b}] {body}) {self.vector(kind, env, d)} {self.vector(kind, env, d)})"
        if roll == 3:
            return f"({self.pick('+', '-', '*')} {self.vector(kind, env, d)} {self.vector(kind, env, d)})"
        if roll == 4:
            return f"({self.pick('*', '+')} {self.real(env, d)} (sin {self.vector(kind, env, d)}))"
        if roll == 5:
            return f"(if {self.truth(env, d)} {self.vector(kind, env, d)} {self.vector(kind, env, d)})"
        if roll == 6:
            return f"(update {self.vector(kind, env, d)} {self.index(env, kind)} {self.real(env, d)})"
        if roll == 7:
            s, a = self.distinct(env, 2)
            body = self.real({**env, s: "R", a: "R"}, d)
            return f"(scan (fn [{s} {a}] (tanh {body})) {self.real(env, d)} {self.vector(kind, env, d)})"
        if roll == 8:
            m, w, v = self.matrix(env, d), self.vector("W", env, d), self.vector("V", env, d)
            return f"(mat-vec {m} {w})" if kind == "V" else f"(vec-mat {v} {m})"
        if roll == 9:
            z = self.name(env)
            inner = {**env, z: kind, i: axis}
            body = self.pick(
                f"(update {z} {i} {self.real(inner, d)})",
                f"(update {z} {i} (+ (get {z} {i}) {self.real(inner, d)}))",
                f"(map (fn [e] (sin e)) {self.vector(kind, inner, d)})",
            )
            return f"(ifold (fn [{z} {i}] {body}) {self.vector(kind, env, d)} {size})"
        if roll == 10:
            a = self.name(env)
            return f"(let [{a} {self.real(env, d)}] {self.vector(kind, {**env, a: 'R'}, d)})"
        if roll == 11 and kind == "W":
            return f"[{' '.join(self.real(env, d) for _ in range(3))}]"
        if roll == 12 and kind == "W":
            return self.pick(
                f"(get {self.matrix(env, d)} {self.index(env, 'V')})",
                f"(cross {self.vector('W', env, d)} {self.vector('W', env, d)})",
            )
        return self.pick(*self.known(env, kind))

    def matrix(self, env: dict[str, str], d: int) -> str:
        if d <= 0 or self.random.random() < 0.4:
            return self.pick(*self.known(env, "M"))
        d -= 1
        self.fresh += 2
        i, j, r = f"i{self.fresh}", f"j{self.fresh}", f"r{self.fresh}"
        return self.pick(
            lambda: f"(build [(len u) 3] (fn [{i} {j}] {self.real({**env, i: 'IV', j: 'IW'}, d)}))",
            lambda: f"(map (fn [{r}] {self.vector('W', {**env, r: 'W'}, d)}) {self.matrix(env, d)})",
            lambda: f"(outer {self.vector('V', env, d)} {self.vector('W', env, d)})",
            lambda: f"(mat-scale {self.real(env, d)} {self.matrix(env, d)})",
        )()


# ------------------------------------------------------------------------------------------- the property


def arguments(seed: int) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """A point and two directions of the active parameters; the point has k at its end."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 5))
    shapes = [(), (), (n,), (n,), (3,), (n, 3)]
    point, one, two = (
        tuple(draw.uniform(-1.2, 1.2, s) if s else float(draw.uniform(-1.2, 1.2)) for s in shapes) for _ in range(3)
    )
    return (*point, int(draw.integers(0, 4))), one, two


NAMES = "x y u v w m"
HELD = "(fn [x y u v w m] (f x y u v w m k))"


def around(text: str, body: str) -> str:
    """A program in ``h``, the model as a function of the active parameters at the given k."""
    return f"(fn [{PARAMS} #^ Int k] (let [f {text}  h {HELD}] {body}))"


def flat(value: Any) -> np.ndarray:
    return np.array(oracle.numbers(value))


def close(a: float, b: float, scale: float = 0.0) -> bool:
    return abs(a - b) <= 1e-8 + 1e-7 * max(abs(a), abs(b), scale)


def truth_of(text: str, point: Any, one: Any, two: Any, second: bool) -> tuple[float, float, float | None]:
    """Value, slope along ``one``, second derivative along both, by the oracle."""
    with mpmath.workdps(oracle.DIGITS):
        f = oracle.meaning(text)
        args = [*map(oracle.internal, point)]
        at = range(ACTIVE)
        a, b = ([*map(oracle.internal, d)] for d in (one, two))
        slope = oracle.along(f, args, at, a)
        curve = oracle.along(lambda *xs: oracle.along(f, xs, at, a), args, at, b) if second else None
        return float(f(*args)), float(slope), None if curve is None else float(curve)


def run_python(text: str, args: Any) -> tuple[Any, Any]:
    model = hyad.model(text, namespace={})
    program = model.optimised(model.specs(args))
    return python_callable(program)(*args), program


def examine(seed: int) -> tuple[list[str], list[tuple[Any, Any, Any]]]:
    """What is wrong with the program of a seed, and what is to be run in C: (program, arguments, expected)."""
    text = Programs(seed).text()
    point, one, two = arguments(seed)
    second = seed % 3 == 0
    wrong: list[str] = []
    value, slope, curve = truth_of(text, point, one, two, second)
    if not all(abs(t) < 1e5 for t in (value, slope, curve or 0.0)):
        return [], []  # too steep to be judged in double precision

    def judge(what: str, got: float, expected: float, scale: float = 0.0) -> None:
        if not close(got, expected, scale):
            wrong.append(f"{what}: {got!r}, expected {expected!r}")

    plain, _ = run_python(text, point)
    judge("value", float(plain), value)
    both, program = run_python(around(text, f"((value-and-grad h) {NAMES})"), point)
    gradient = flat(both[1])
    scale = float(np.abs(gradient).max())
    judge("value beside the gradient", float(both[0]), value)
    judge("reverse", float(gradient @ flat(one)), slope, scale)
    moves = " ".join(f"d{k}" for k in range(ACTIVE))
    jvp = f"(fn [{PARAMS} {moves} #^ Int k] (let [f {text}  h {HELD}] (jvp h {NAMES} {moves})))"
    forward, _ = run_python(jvp, (*point[:-1], *one, point[-1]))
    judge("forward", float(forward), slope, scale)
    if curve is not None:
        hvp = jvp.replace("(jvp h", "(hvp h")
        h1 = flat(run_python(hvp, (*point[:-1], *one, point[-1]))[0])
        judge("forward over reverse", float(h1 @ flat(two)), curve, float(np.abs(h1).max()))
        ror = jvp.replace(f"(jvp h {NAMES} {moves})", f"(vjp (grad h) {NAMES} #({moves}))")
        h2 = flat(run_python(ror, (*point[:-1], *one, point[-1]))[0])
        judge("reverse over reverse", float(h2 @ flat(two)), curve, float(np.abs(h2).max()))
    wrong += round_trips(text, program, point, both)
    return wrong, [(program, point, both)]


def round_trips(text: str, program: Any, point: Any, expected: Any) -> list[str]:
    """Printed text reads back as the same model, and as one of the same value."""
    surface = read_model(text)
    printed = unparse(print_lambda(surface))
    wrong = [] if alpha_equal(read_model(printed), surface) else [f"print_lambda: {printed}"]
    again = unparse(print_program(program))
    (form,) = read_forms(again)
    if unparse(form) != again:
        wrong.append("print_program: the text does not read back")
    got, _ = run_python(again, point)
    if not np.allclose(flat(got), flat(expected), rtol=1e-9, atol=1e-9):
        wrong.append(f"print_program: {flat(got)}, expected {flat(expected)}: {again}")
    return wrong


@pytest.mark.some(6)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_programs_mean_one_thing_everywhere(first: int) -> None:
    failures: list[str] = []
    compiled: list[tuple[int, Any, Any, Any]] = []
    together = batch.Batch()
    for seed in range(first, first + CHUNK):
        try:
            wrong, runs = examine(seed)
            if batch.CC is not None:
                for program, point, expected in runs:
                    compiled.append((seed, together.add(program), point, expected))
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        failures += [f"seed {seed}: {Programs(seed).text()}\n  {w}" for w in wrong]
    together.compile(1)
    for seed, call, point, expected in compiled:
        found = oracle.mismatch(call(*point, like=expected), expected, 1e-8, 1e-8)
        if found:
            failures.append(f"seed {seed}: {Programs(seed).text()}\n  C: {found}")
    assert not failures, "\n".join(failures)
