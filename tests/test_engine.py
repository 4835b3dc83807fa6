"""The engine's parts: rules, reader, builder, optimiser; and that all of it is linear, counted and never timed."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest

import hyad
import oracle
from hyad.codegen.c import print_c
from hyad.core import (
    BOOL,
    INT,
    REAL,
    Arr,
    Check,
    Const,
    If,
    Loop,
    Prim,
    Program,
    Var,
    all_binds,
    free_vars,
    kinds_of,
    size,
    substitute,
)
from hyad.errors import HyadError, ReadError
from hyad.passes.optimise import optimise
from hyad.plain_python import python_callable
from hyad.program.builder import Builder
from hyad.program.forms import Form, unparse
from hyad.program.primitives import PRIMITIVES
from hyad.program.printer import alpha_equal, print_lambda, print_program
from hyad.program.reader import read_model
from hyad.program.rewrite import rewrite, rules

RULES = [rule for rows in rules().values() for rule in rows]
NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -3.75, 1e-310, 1e308, -1e308, INF, -INF, NAN]
CONSTANTS = {
    "c": [0.0, 1.0, 2.5, -3.75, 1e300],
    "d": [1.0, -2.5],
    "p": [2.0, 1.0, 1024.0],
    "w": [1.0, 2.5, -3.75, 1e300],
    "n": [-1.0, -2.5, -1e300],
    "q": [0.0, 2.5, 1e-310, 1e300],
    "r": [1.0, 0.0, 1e300],
}
FINITE = [0.0, -0.0, 1.0, -1.0, 2.5, -3.75, 1e-10, 1e10, -7.1]

# ------------------------------------------------------------------------------------------------ rules


def letters(form: Form, found: dict[str, str] | None = None) -> dict[str, str]:
    """The operands of a pattern by kind: a key of ``CONSTANTS``, "any", or "truth" for a select's condition."""
    found = {} if found is None else found
    if form.kind == "sym":
        found.setdefault(form.value, form.value if form.value in CONSTANTS else "any")
    elif form.is_list:
        for k, part in enumerate(form.value[1:]):
            if form.head() in ("select", "if") and k == 0:
                found[part.value] = "truth"
            else:
                letters(part, found)
    return found


def has_soft(form: Form) -> bool:
    return form.head() == "soft" or (form.is_list and any(map(has_soft, form.value)))


def value_of(form: Form, env: dict[str, Any]) -> Any:
    """A side of a rule, computed with Python's floats."""
    if form.kind == "num":
        return float(form.value)
    if form.kind == "sym":
        return env[form.value]
    head, *parts = form.value
    if head.value in ("soft", "temp"):
        return value_of(parts[0], env)
    if head.value == "fold":
        head, *parts = parts
    values = [value_of(p, env) for p in parts]
    if head.value in ("select", "if"):
        return values[1] if values[0] else values[2]
    return PRIMITIVES[head.value].python(*values)


def samples(names: dict[str, str], values: list[float]) -> Any:
    pools = [{"truth": [True, False], "any": values, **CONSTANTS}[kind] for kind in names.values()]
    for row in itertools.product(*pools):
        yield dict(zip(names, row))


def bits_equal(a: float, b: float) -> bool:
    return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_a_rule_holds_on_both_sides(rule: Any) -> None:
    """For every IEEE number and to the last bit (scaling by a constant rounds subnormal numbers once, not twice); with
    a soft operand for finite numbers, up to rounding and the sign of a zero."""
    soft, scaling = has_soft(rule.pattern), "(temp" in str(rule.pattern)
    wrong = []
    for env in samples(letters(rule.pattern), FINITE if soft else SPECIAL):
        left, right = value_of(rule.pattern, env), value_of(rule.template, env)
        if soft:
            same = not math.isfinite(left) or math.isclose(left, right, rel_tol=1e-15, abs_tol=0.0)
        else:
            same = bits_equal(float(left), float(right)) or (scaling and abs(left - right) < 1e-308)
        if not same:
            wrong.append((env, left, right))
    assert not wrong, f"{rule.pattern} => {rule.template}: {wrong[:3]}"


@pytest.mark.parametrize("rule", [r for r in RULES if not re.search("select|if", str(r.pattern))], ids=lambda r: r.name)
def test_a_rule_holds_for_integers(rule: Any) -> None:
    """Wherever both sides have Int forms."""

    def whole(form: Form, env: dict[str, int]) -> int | None:
        if form.kind == "num":
            return int(form.value)
        if form.kind == "sym":
            return env[form.value]
        head, *parts = form.value
        if head.value in ("soft", "temp"):
            return whole(parts[0], env)
        if head.value == "fold":
            head, *parts = parts
        if head.value in ("/", "**"):
            return None
        values = [whole(p, env) for p in parts]
        return None if None in values else PRIMITIVES[head.value].python(*values)

    names = letters(rule.pattern)
    for row in itertools.product([0, 1, -1, 2, -5, 7], repeat=len(names)):
        env = dict(zip(names, row))
        assert whole(rule.pattern, env) is None or whole(rule.pattern, env) == whole(rule.template, env), env


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_a_rule_fires_on_its_pattern(rule: Any) -> None:
    b = Builder()
    names = letters(rule.pattern)
    kinds = {"truth": BOOL, "any": REAL}
    env: dict[str, Any] = {
        n: Const(CONSTANTS[k][-1], REAL, True) if k in CONSTANTS else Var(n, kinds[k]) for n, k in names.items()
    }

    def make(form: Form) -> Any:
        if form.kind == "num":
            return Const(float(form.value), REAL)
        if form.kind == "sym":
            return env[form.value]
        head, *parts = form.value
        if head.value == "soft":
            return env[parts[0].value] if parts[0].kind == "sym" else Const(float(parts[0].value), REAL, True)
        if head.value == "temp":
            return make(parts[0])
        args = tuple(map(make, parts))
        op = Prim(head.value, args)  # as it is: no other rule may change what this one looks for
        (var,) = b.emit(op, (REAL,))
        b.definitions[var] = op
        return var

    args = tuple(map(make, rule.pattern.value[1:]))
    assert rewrite(rule.head, args, b.definitions, b, REAL) is not None


#: What must keep its meaning: a user's own constants hide no NaN, no infinity and no sign of zero.
MUST_NOT_FIRE = [
    ("(* x 0.0)", INF, NAN),
    ("(* x 0)", INF, NAN),
    ("(* 0.0 x)", NAN, NAN),
    ("(* 0.0 (if (> x 0.0) -1.0 1.0))", 2.0, -0.0),
    ("(* 0.0 (if (> x 0.0) 1.0 -0.0))", -2.0, -0.0),
    ("(* 0.0 (if (> x 0.0) 1e999 1.0))", 2.0, NAN),
    ("(* 0.0 x)", -1.0, -0.0),
    ("(/ x x)", 0.0, NAN),
    ("(/ x x)", INF, NAN),
    ("(- x x)", INF, NAN),
    ("(- x x)", NAN, NAN),
    ("(+ x (- x))", INF, NAN),
    ("(+ x 0.0)", -0.0, 0.0),
    ("(+ 0.0 x)", -0.0, 0.0),
    ("(- 0.0 x)", 0.0, 0.0),
    ("(- x -0.0)", -0.0, 0.0),
    ("(/ 0.0 x)", 0.0, NAN),
    ("(/ 0 x)", 0.0, NAN),
    ("(= x x)", NAN, False),
    ("(!= x x)", NAN, True),
    ("(<= x x)", NAN, False),
    ("(sqrt (* x x))", -2.0, 2.0),
    ("(log (exp x))", 1000.0, INF),
    ("(exp (log x))", -1.0, NAN),
    ("(* x (/ 1.0 x))", 0.0, NAN),
    ("(/ (* x 3.0) 3.0)", 1e308, INF),
    ("(- (+ x 1e16) 1e16)", 1.0, 0.0),
    ("(* 0.1 (* 3.0 x))", 1.0, 0.1 * 3.0),
    ("(- (* x x) (* x x))", 1e200, NAN),
    ("(** x 0.5)", -0.0, 0.0),
    ("(** x 2)", -3.0, 9.0),
    ("(min x 1.0)", NAN, NAN),
    ("(max 1.0 x)", NAN, NAN),
    ("(* (- x) 0.0)", 1.0, -0.0),
    ("(- (- x) 0.0)", 0.0, -0.0),
    ("(- (- x) 0.0)", -0.0, 0.0),
    ("(abs x)", -0.0, 0.0),
    ("(+ (- x) 0.0)", 0.0, 0.0),
    ("(if (< x 0) 1.0 1.0)", NAN, 1.0),
    ("(* 2 (* 0.5 x))", 5e-324, 0.0),
    ("(let [y (- x)] (- y -0.0))", 0.0, 0.0),
]


@pytest.mark.parametrize("expression, x, expected", MUST_NOT_FIRE)
def test_nothing_changes_what_ieee_says(expression: str, x: float, expected: Any) -> None:
    model = hyad.model(f"(fn [x] {expression})", namespace={})
    for plain in (True, False):
        program = model.program(model.specs((x,)), plain=plain)
        got = python_callable(program if plain else optimise(program))(x)
        assert bits_equal(float(got), float(expected)), (plain, got)


def test_soft_zeros_and_ones_leave_no_trace() -> None:
    """What differentiation introduces is gone from its result."""
    for text, operations in [
        ("(fn [x] ((D (fn [t] t)) x))", 0),
        ("(fn [x] ((D (fn [t] (* 3 t))) x))", 0),
        ("(fn [x y] ((D (fn [t] (+ (* t y) 1))) x))", 0),
        ("(fn [x y] ((grad (fn [a b] (+ a b))) x y))", 0),
        ("(fn [x] ((D (fn [t] (* t t))) x))", 1),
        ("(fn [x] ((D (D (fn [t] (* t t)))) x))", 0),
        ("(fn [x] ((D sin) x))", 1),
        ("(fn [x] ((D (fn [t] (get [t t] 0))) x))", 0),
    ]:
        model = hyad.model(text, namespace={})
        assert size(model.optimised().body) == operations, (text, print_text(model.optimised()))


def print_text(program: Program) -> str:
    return unparse(print_program(program))


# ----------------------------------------------------------------------------------------------- linear


def logistic(d: int) -> str:
    lines = " ".join(f"x{k + 1} (* 3.7 x{k} (- 1 x{k}))" for k in range(d))
    return f"(fn [x0] (let [{lines}] x{d}))"


def nested(d: int) -> str:
    return "(fn [x] " + "(sin " * d + "x" + ")" * d + ")"


def nested_lets(d: int) -> str:
    return "(fn [x0] " + "".join(f"(let [x{k + 1} (* x{k} (- 1 x{k}))] " for k in range(d)) + f"x{d}" + ")" * d + ")"


LINEAR = [(logistic, (100, 1000, 10000)), (nested, (100, 1000, 10000)), (nested_lets, (100, 1000, 4000))]


@pytest.mark.some(10)
@pytest.mark.parametrize("write, depths", LINEAR)
def test_reading_specialising_and_differentiating_are_linear(write: Any, depths: tuple[int, ...]) -> None:
    """Counted in bindings. At depth 10000 nothing recurses too deeply."""
    counts: dict[str, list[int]] = {}
    for d in depths:
        model = hyad.model(write(d), namespace={})
        stages = {
            "read": size(read_model(write(d)).body),
            "specialised": size(model.program([REAL]).body),
            "reverse": size(hyad.grad(model).program([REAL]).body),
        }
        if d < depths[-1]:
            stages["forward"] = size(hyad.D(model).program([REAL]).body)
        for name, count in stages.items():
            counts.setdefault(name, []).append(count)
    for name, found in counts.items():
        per_level = [count / d for count, d in zip(found, depths)]
        assert max(per_level) <= 1.2 * min(per_level) + 0.2, (name, found)
        assert max(per_level) <= 12, (name, found)


def test_optimising_and_printing_are_linear() -> None:
    counts = []
    for d in (100, 400, 1600):
        program = hyad.grad(hyad.model(logistic(d), namespace={})).optimised([REAL])
        counts.append((size(program.body) / d, len(print_text(program)) / d, len(print_c(program).source) / d))
    for one in zip(*counts):
        assert max(one) <= 1.3 * min(one), counts


def test_the_deepest_gradient_runs() -> None:
    d = 10000
    program = hyad.grad(hyad.model(nested(d), namespace={})).program([REAL])
    value, slope = 1.0, 1.0
    for _ in range(d):
        value, slope = math.sin(value), math.cos(value) * slope
    assert math.isclose(python_callable(program)(1.0), slope, rel_tol=1e-9)


def test_the_same_map_as_a_loop_has_one_size() -> None:
    sizes = []
    for d in (1000, 10000):
        model = hyad.model(f"(fn [x] (ifold (fn [a i] (* 3.7 a (- 1 a))) x {d}))", namespace={})
        sizes.append([size(m.optimised([REAL]).body) for m in (model, hyad.grad(model), hyad.D(model))])
    assert sizes[0] == sizes[1]


def test_values_at_depth_agree_with_the_recurrence() -> None:
    d, x = 300, 0.3
    value, slope = x, 1.0
    for _ in range(d):
        value, slope = 3.7 * value * (1 - value), 3.7 * (1 - 2 * value) * slope
    for operator in (hyad.grad, hyad.D):
        got = python_callable(operator(hyad.model(logistic(d), namespace={})).optimised([REAL]))(x)
        # the map is chaotic: both grow apart from the exact orbit, in the same order of magnitude
        assert abs(math.log(abs(got)) - math.log(abs(slope))) < 60
    small = 20
    truth = float(oracle.evaluate(f"(fn [x] ((D {logistic(small)}) x))", x))
    for operator in (hyad.grad, hyad.D):
        got = python_callable(operator(hyad.model(logistic(small), namespace={})).optimised([REAL]))(x)
        assert math.isclose(got, truth, rel_tol=1e-6)


def test_higher_derivatives_share_their_parts() -> None:
    """Lets are kept: the n-th derivative of a product of ten factors does not explode."""
    text = "(fn [x] (let [a (sin x) b (* a x) c (* b a) d (* c b) e (* d c) f (* e d)] f))"
    model, counts = hyad.model(text, namespace={}), []
    for _ in range(4):
        model = hyad.D(model)
        counts.append(size(model.optimised([REAL]).body))
    assert counts[-1] < 600 and counts == sorted(counts)


# ----------------------------------------------------------------------------------- sharing, dead code


def optimised(text: str, *args: Any) -> Program:
    model = hyad.model(text, namespace={})
    return model.optimised(model.specs(args) if args else None)


def names_of(program: Program) -> list[str]:
    return [b.op.name if isinstance(b.op, Prim) else type(b.op).__name__ for b in all_binds(program.body)]


def test_common_subexpressions_are_computed_once() -> None:
    assert names_of(optimised("(fn [x y] (+ (sin (* x y)) (cos (* y x)) (sin (* x y))))")).count("sin") == 1
    assert names_of(optimised("(fn [x y] (+ (sin (* x y)) (cos (* y x))))")).count("*") == 1
    assert names_of(optimised("(fn [x y] (- (- x y) (- y x)))")).count("-") == 3
    assert names_of(optimised("(fn [x] (let [e (exp x)] (if (> x 0) (+ e (exp x)) (* 3 (exp x)))))")).count("exp") == 1
    both = names_of(optimised("(fn [x] (if (> x 0) (exp (* 2 x)) (- (exp (* 2 x)))))"))
    assert both.count("exp") in (1, 2), "a value of one branch does not serve the other"
    assert names_of(optimised("(fn [x y] #((< x y) (< y x)))")).count("<") == 2
    assert names_of(optimised("(fn [v] (+ (get v 0) (get v 0)))", np.ones(2))).count("get") == 1


def test_a_power_of_a_real_is_real() -> None:
    """Whatever its exponent folds to: it may be a field or an argument."""
    b = Builder()
    assert [b.prim("**", Var("x", REAL), Const(n, INT)).type for n in (0, 1, 2, -1)] == [REAL] * 4


def test_a_branch_keeps_its_values_to_itself() -> None:
    program = optimised("(fn [x] (+ (if (> x 0) (log x) 0.0) (if (> x 1) (log x) 0.0)))")
    outside = [b.op.name for b in program.body.binds if isinstance(b.op, Prim)]
    assert "log" not in outside
    assert python_callable(program)(-1.0) == 0.0


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "text",
    [
        "(fst (ifold (fn [#(s n) i] #((+ s (sum (sort (build n (fn [j] (* s (get v j))))))) n)) #(0.5 (len v)) 3))",
        "(let [n (ref (len v)) s (ref 0.5) k (ref 0)] (while (< (deref k) 3)"
        " (set! s (+ (deref s) (sum (sort (build (deref n) (fn [j] (* (get v j) (deref s)))))))) (set! n (deref n))"
        " (set! k (+ 1 (deref k)))) (deref s))",
        "(letrec [go (fn [k u] (if (<= k 0) (sum u) (go (- k 1) (* 2 v))))] (+ 0.5 (go 3 v)))",
        "(ifold (fn [s i] (+ s (sum (sort (build i (fn [j] (* s (get v j))))))"
        " (sum (sort (build i (fn [j] (get v j))))))) 0.5 (len v))",
    ],
    ids=["loop", "while", "tail call", "two loops"],
)
def test_a_size_that_stays_is_the_size_of_arrays(text: str) -> None:
    """An accumulator that no iteration changes is what it was at first, in the types of the loop's arrays as well: the
    checker looks after each pass."""
    f, v = hyad.model(f"(fn [v] {text})", namespace={}), np.array([0.25, -0.5, 2.0])
    for derived in (f, hyad.grad(f)):
        args = (v,)
        np.testing.assert_allclose(hyad.compile(derived, "python", args=args)(v), hyad.run(derived, v), rtol=1e-14)


def test_what_no_result_needs_is_dropped() -> None:
    assert names_of(optimised("(fn [x] (let [y (sin x)  z (exp y)] (* x 2)))")) == ["*"]
    assert "Loop" not in names_of(optimised("(fn [x v] (let [w (map sin v)] x))", 1.0, np.ones(3)))
    program = optimised("(fn [x n] (fst (ifold (fn [#(a b) i] #((* a x) (exp b))) #(x x) n)))", 1.0, 3)
    assert "exp" not in names_of(program)
    program = optimised("(fn [x] (fst (if (> x 0) #(x (exp x)) #(0.0 (log x)))))", 1.0)
    assert not {"exp", "log"} & set(names_of(program))
    gradient = hyad.grad(hyad.model("(fn [v] (fold + 0.0 v))", namespace={}))
    assert names_of(gradient.optimised(gradient.specs((np.ones(3),)))).count("Loop") == 1


def test_checks_are_kept() -> None:
    program = optimised("(fn [v i] (let [unused (get v i)] 1.0))", np.ones(3), 1)
    assert any(isinstance(b.op, Check) for b in all_binds(program.body))
    program = optimised("(fn [v n] (let [w (ifold (fn [s i] (+ s (get v i))) 0.0 n)] 1.0))", np.ones(3), 1)
    assert any(isinstance(b.op, Check) for b in all_binds(program.body))


def test_checks_that_are_proven_are_left_out() -> None:
    for text in (
        "(fn [v] (ifold (fn [s i] (+ s (get v i))) 0.0 (len v)))",
        "(fn [v] (ifold (fn [s i] (+ s (get v (- (len v) 1 i)))) 0.0 (len v)))",
        "(fn [v] (ifold (fn [s i] (+ s (get v (+ i 1)))) 0.0 (- (len v) 1)))",
        "(fn [v] (fold + 0.0 (map * v v)))",
        "(fn [v i] (if (>= i 0) (if (< i (len v)) (get v i) 0.0) 0.0))",
        "(fn [#^ (Vec 3) v] (* (get v 0) (get v 2) (get v -1)))",
    ):
        args = (np.ones(3), 1) if "v i]" in text else (np.ones(3),)
        program = optimised(text, *args)
        in_loops = [b for b in all_binds(program.body) if isinstance(b.op, Check)]
        assert len(in_loops) <= (1 if "(len v) 1)))" in text else 0), print_text(program)


@pytest.mark.some(2)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_unrolling_equals_looping(n: int) -> None:
    """The same model at a static and at a run-time size: values and derivatives."""
    v = np.linspace(0.4, 1.6, n)
    for body in (
        "(fold (fn [s x] (+ (* s x) (sin x))) 1.0 v)",
        "(fold + 0.0 (map (fn [x] (* x x x)) v))",
        "(ifold (fn [s i] (if (= (% i 2) 0) (* s (get v i)) (- s (get v i)))) 0.5 (len v))",
        "(fst (fold (fn [#(a b) x] #((+ a (* b x)) (sin a))) #(0.0 1.0) v))",
        "(sum (ifold (fn [w i] (update w i (* 2 (get w i) (get w (- (len v) 1 i))))) v (len v)))",
    ):
        static = hyad.model(f"(fn [#^ (Vec {n}) v] {body})", namespace={})
        dynamic = hyad.model(f"(fn [v] {body})", namespace={})
        for operator in (lambda m: m, hyad.grad, hyad.hessian):
            a, b = operator(static), operator(dynamic)
            one = python_callable(a.optimised([Arr(REAL, (n,))]))(v)
            two = python_callable(b.optimised(b.specs((v,))))(v)
            found = oracle.mismatch(one, two, 1e-12)
            assert found is None, (body, found)


def test_a_small_static_loop_is_written_out_and_a_large_one_is_not() -> None:
    assert not any(isinstance(b.op, Loop) for b in all_binds(optimised("(fn [#^ (Vec 4) v] (fold * 1.0 v))").body))
    assert any(isinstance(b.op, Loop) for b in all_binds(optimised("(fn [#^ (Vec 4000) v] (fold * 1.0 v))").body))


def test_a_triangle_counts_as_what_it_is_written_out() -> None:
    """Its inner loop is as long as half a row on average, and not as one iteration."""
    text = """(fn [#^ (Mat N N) m #^ (Mat k N) rows]
      (map (fn [v] (build N (fn [r] (ifold (fn [s c] (+ s (* (get m r c) (get v c)))) 0.0 (+ r 1))))) rows))"""
    programs = [optimised(text.replace("N", n)) for n in ("4", "6", "20")]
    loops = [sum(isinstance(b.op, Loop) for b in all_binds(p.body)) for p in programs]
    assert loops[0] == loops[1] == 1 and loops[2] > 1


def test_a_constant_condition_leaves_no_branch() -> None:
    for text in (
        "(fn [x] (if True x (log x)))",
        "(fn [x] (if (< 1 2) x (log x)))",
        "(fn [#^ (Vec 3) v] (if (= (len v) 3) (get v 0) 0.0))",
    ):
        assert not any(isinstance(b.op, If) for b in all_binds(optimised(text).body))


# ------------------------------------------------------------------------------------------------ reader

READABLE = [
    "(fn [x] x)",
    "(fn [] 1)",
    "(fn [x y] (* x (sin y)))",
    "(fn [x] (let [y (* 2 x)] (+ y 1)))",
    "(fn [#^ Real x #^ (Vec n) v #^ (Mat 2 m) a #^ (Arr Int n 3 k) t] x)",
    "(fn [x] (if (> x 0) x (- x)))",
    "(fn [v] (build [(len v) 2] (fn [i j] (get v i))))",
    "(fn [#(a b)] (+ a b))",
    "(fn [f x] (f (f x)))",
    "(fn [x] (cond (> x 1) 1.0  True 2.0))",
    "(fn [x] (let [#(a b) #(x 1)] (do a b)))",
    "(fn [x] ((grad (fn [y] (* y y)) :wrt y) x))",
    "(fn [p] (. p field))",
    "(fn [p] p.field)",
    "(fn [x] (and (> x 0) (< x 1) True))",
    "(fn [x] [1 2.5 [x]])",
    "(fn [x] (let [t 1 t (+ t x) t1 t] (* t t1)))",
    "(fn [x] (let [get 1] (+ get x)))",
    "(fn [x] NaN)",
    "(fn [x] (+ x Inf -Inf 1e-300 -0.0))",
    "(fn [x] (deriv (* x x) x))",
    "(fn [x] ((grad (fn [a b] (* a b)) :wrt #(b 0)) x x))",
    "(fn [x] None)",
]


@pytest.mark.parametrize("text", READABLE)
def test_what_is_printed_reads_back(text: str) -> None:
    first = read_model(text)
    again = read_model(unparse(print_lambda(first)))
    assert alpha_equal(first, again), unparse(print_lambda(first))
    assert unparse(print_lambda(again)) == unparse(print_lambda(first))


def test_different_models_are_not_alpha_equal() -> None:
    one = read_model("(fn [x y] (+ (* x y) x))")
    for other in (
        "(fn [x y] (+ (* x y) y))",
        "(fn [x y] (+ (* y x) x))",
        "(fn [x] (+ (* x x) x))",
        "(fn [x y] (- (* x y) x))",
    ):
        assert not alpha_equal(one, read_model(other)), other
    assert alpha_equal(one, read_model("(fn [a b] (+ (* a b) a))"))


@pytest.mark.parametrize(
    "text",
    [
        "(fn [x] x",
        "(fn [x] x))",
        "(fn [x] [x)",
        "(fn x x)",
        "(fn [x])",
        "(fn [x x] x)",
        "(fn [if] 1)",
        "(fn [x] (let [x] x))",
        "(fn [x] (let [y 1]))",
        "(fn [x] (if x 1))",
        "(fn [x] ())",
        "(fn [x] (cond (> x 0) 1))",
        "(fn [x] 'x)",
        '(fn [x] "s")',
        "(fn [x] {1 2})",
        '(fn [x] (+ x "s"))',
        "(fn [x] #^ Real x)",
        "(fn [1] 1)",
        "(* 2 3)",
        "(fn [x] x) (fn [y] y)",
        "",
        "(fn [x] (grad f :by x))",
        "(fn [* x] x)",
        "(fn [x] (let [let 1] x))",
        "(fn [x] if)",
        "(fn [x] #{1})",
        '(fn [x] "never closed)',
    ],
)
def test_what_does_not_read_says_where(text: str) -> None:
    with pytest.raises(ReadError) as raised:
        read_model(text)
    assert raised.value.span is not None and raised.value.message


def test_spans_underline_the_form() -> None:
    with pytest.raises(HyadError) as raised:
        hyad.model("(fn [x]\n  (+ x\n     (* y 2)))", namespace={})(1.0)
    assert "<model>:3:9" in str(raised.value)
    assert "(* y 2)" in str(raised.value) and "^" in str(raised.value)


# ----------------------------------------------------------------------------------------------- builder


def test_integers_have_one_form() -> None:
    """Affine integers are equal whenever they are: no second computation, no check."""
    program = optimised("(fn [i j] (- (+ i j 1) (+ j (+ 1 i))))", 1, 2)
    assert size(program.body) == 0 and program.body.results[0].value == 0
    program = optimised("(fn [v i] (+ (get v (+ i 1)) (get v (- (+ i 2) 1))))", np.ones(9), 1)
    assert names_of(program).count("get") == 1


def test_constants_fold_as_python_computes_them() -> None:
    for text, expected in [
        ("(+ 0.1 0.2)", 0.1 + 0.2),
        ("(// -7 2)", -4),
        ("(% -7 2)", 1),
        ("(/ 1 3)", 1 / 3),
        ("(** 2 -1)", 0.5),
        ("(* 3 (len [1 2]))", 6),
        ("(sqrt -1.0)", NAN),
        ("(/ 1 0)", INF),
        ("(exp 1000)", INF),
        ("(int -2.7)", -2),
        ("(real 3)", 3.0),
        ("(min 1 2.5)", 1.0),
        ("(** 0 0)", 1.0),
        ("(sin 1)", math.sin(1)),
    ]:
        program = optimised(f"(fn [] {text})")
        (result,) = program.body.results
        assert isinstance(result, Const), text
        assert bits_equal(float(result.value), float(expected)), (text, result.value)
        assert (result.type == INT) == (type(expected) is int), text


def test_an_integer_overflow_is_not_folded() -> None:
    for text in (
        "(fn [] (* 3037000500 3037000500))",
        "(fn [] (+ 9223372036854775807 1))",
        "(fn [] (- (- 9223372036854775807) 2))",
    ):
        program = optimised(text)
        assert all(not isinstance(r, Const) or abs(r.value) < 2**63 for r in program.body.results)


def test_array_elements_of_known_index_are_values() -> None:
    program = optimised("(fn [x y] (let [v [x y (* x y)]] (+ (get v 0) (get v 2))))")
    assert not {"array", "get"} & set(names_of(program))
    program = optimised("(fn [x] (get (update (zeros 4) 2 x) 2))")
    assert size(program.body) == 0


def test_what_a_block_remembers_of_itself_is_so() -> None:
    """Free variables and kinds of operations, against those that all bindings say; what a substitution has made
    remembers anew."""
    text = "(fn [#^ (Vec n) x a] (sum (map (fn [e] (if (> e a) (ifold (fn [s i] (* s e)) 1.0 3) (sin a))) x)))"
    p = hyad.model(text).optimised(None)
    a = p.params[1]
    assert kinds_of(p.body) == {type(x.op) for x in all_binds(p.body)} - {Prim}
    assert {*free_vars(p.body)} <= {*p.params, *p.dims} and a in free_vars(p.body)
    other = Var("other", REAL)
    moved = substitute(p.body, {a: other})
    assert {*free_vars(moved)} == ({*free_vars(p.body)} - {a}) | {other}
    assert kinds_of(moved) == kinds_of(p.body) and size(moved) == size(p.body)


@pytest.mark.parametrize("name, sign", [("cos", 1), ("cosh", 1), ("abs", 1), ("sin", -1), ("tan", -1), ("tanh", -1)])
def test_even_and_odd_functions_of_opposite_differences(name: str, sign: int) -> None:
    """One call, to the last bit, and 0 where both are equal, not -0."""
    f = hyad.model(f"(fn [x y] (+ (* 3 ({name} (- x y))) ({name} (- y x))))", namespace={})
    program = f.optimised(f.specs())
    assert sum(type(x.op) is Prim and x.op.name == name for x in all_binds(program.body)) == 1
    for x, y in ((0.3, 0.8), (2.0, -1.5), (0.4, 0.4), (np.inf, 1.0), (np.nan, 0.0)):
        np.testing.assert_equal(hyad.compile(f, target="python")(x, y), hyad.run(f, x, y))
    hyad.check_grad(f, (0.3, 0.8))
    zero = hyad.model(f"(fn [x y] (let [t ({name} (- x y))] (array [t ({name} (- y x))])))", namespace={})
    if sign < 0:
        assert not np.signbit(zero(0.4, 0.4)).any()
