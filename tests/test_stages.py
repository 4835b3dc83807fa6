"""Every stage of every model prints text that reads back, and evaluates to its value: in hyad and as plain Hy."""

from __future__ import annotations

import hy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hyad
import hyad.runtime
from hyad.errors import DerivativeError, HyadError
from hyad.layout import pformat
from hyad.plain_python import python_callable
from hyad.program.forms import prelude_texts
from hyad.program.printer import alpha_equal, print_lambda, print_program
from hyad.program.reader import read_model

V = np.array([1.0, 2.0, 3.5])
M = np.arange(6.0).reshape(2, 3) + 1
MODELS = {  # text, arguments, what to differentiate by
    "scalar": ("(fn [x y] (* x (sin y)))", (2.0, 0.3), None),
    "fold": ('(defmodel energy [#^ (Vec n) v] "cubes" (fold + 0.0 (map (fn [x] (* x x x)) v)))', (V,), None),
    "tuples": ("(fn [v p] (let [#(a b) p] (fold (fn [s x] (+ s (* a (sin x)))) b v)))", (V, (1.0, 2.0)), None),
    "nested tuples": ("(fn [p] (* (get p 0) (get (get p 1) 1)))", ((2.0, (V[0], 4.0)),), None),
    "heron": ("(fn [x] (ifold (fn [r i] (/ (+ r (/ x r)) 2)) 1.0 20))", (2.0,), None),
    "branch": ("(fn [x] (if (> x 0) (sqrt x) (- x)))", (2.0,), None),
    "cond": ("(fn [x] (cond (< x 0) 1.0  (< x 1) x  True (* x x)))", (2.0,), None),
    "matrix": ("(fn [#^ (Mat n m) a x] (mat-vec a x))", (M, V), 0),
    "two results": ("(fn [#^ (Vec 3) x] #((norm x) (cross x [1.0 0.0 2.0])))", (V,), None),
    "scan": ("(fn [v] (scan (fn [a x] (+ a (* x x))) 0.0 v))", (V,), None),
    "update": ("(fn [v i] (* 2.0 (get (update v i 7.0) (- (len v) 1))))", (V, 1), 0),
    "check": ("(fn [v i] (* (get v i) (get v i)))", (V, 1), 0),
    "two arrays": ("(fn [u v] (map (fn [a b] (* a b)) u v))", (V, V + 1), 0),
    "closures": ("(fn [x] (let [g (fn [f x] (f (f x)))] (g (fn [z] (* z x)) x)))", (2.0,), None),
    "many operands": ("(fn [x y] (+ (min x y (max x 1.0)) (sigmoid x) (** x 3) (% x 1.5)))", (2.0, 3.0), None),
    "sizes": ("(fn [n x] (fold + 0.0 (build n (fn [i] (* x (real i))))))", (3, 2.0), 1),
    "build 2": ("(fn [v] (build [2 (len v)] (fn [i j] (* (real i) (get v j)))))", (V,), None),
    "nested derivative": ("(fn [x] (* x ((D (fn [t] (* t t x))) x)))", (1.5,), None),
}
ONE_NUMBER = {"scalar", "fold", "tuples", "nested tuples", "heron", "branch", "cond", "closures", "many operands"}
ONE_NUMBER |= {"sizes", "nested derivative", "update", "check"}


def numbers(value) -> np.ndarray:
    """The numbers of a structured value."""
    if isinstance(value, (tuple, list)):
        return np.concatenate([np.zeros(0), *map(numbers, value)])
    return np.asarray(value, float).ravel()


def as_hy(text: str):
    """The text evaluated by Hy, where hyad.runtime says what the names mean."""
    names = {name: getattr(hyad.runtime, name) for name in hyad.runtime.__all__}
    return hy.eval(hy.read(text), names)


def derivative(name: str):
    text, _, wrt = MODELS[name]
    return (hyad.grad if name in ONE_NUMBER else hyad.jacobian)(hyad.model(text), wrt)


@pytest.mark.some(6)
@pytest.mark.parametrize("derived", [False, True], ids=["model", "derivative"])
@pytest.mark.parametrize("name", MODELS)
def test_every_stage_evaluates_and_reads_back(name: str, derived: bool) -> None:
    text, args, _ = MODELS[name]
    model = derivative(name) if derived else hyad.model(text)
    run = hyad.compile(model, "python", args=args)
    value = numbers(run(*args))
    stages = hyad.stages(model, args=args)
    for stage in ("anf", "typed", "forward", "reverse", "optimised"):
        shown = stages[stage]
        point = args
        if stage == "forward":
            point = (*args, *args)
        elif stage == "reverse" and shown.program.name.endswith("vjp"):
            point = (*args, run(*args))
        expected = numbers(shown(*point))
        if stage not in ("forward", "reverse"):
            np.testing.assert_allclose(expected, value, rtol=1e-12, atol=1e-14, err_msg=stage)
        if stage == "anf" and (derived or name == "nested derivative"):
            continue  # operators take models: Hy has no meaning for (grad f) of a Python function
        np.testing.assert_allclose(numbers(as_hy(shown)(*point)), expected, rtol=1e-12, atol=1e-14, err_msg=shown)
        again = hyad.compile(hyad.model(str(shown), namespace={}), "python", args=point)
        np.testing.assert_allclose(numbers(again(*point)), expected, rtol=1e-12, atol=1e-14, err_msg=shown)


@pytest.mark.parametrize("name", MODELS)
def test_surface_core_reads_back_as_itself(name: str) -> None:
    f = read_model(MODELS[name][0])
    assert alpha_equal(read_model(pformat(print_lambda(f))), f)


def test_alpha_equal_tells_programs_apart() -> None:
    assert alpha_equal(read_model("(fn [x] (sin x))"), read_model("(fn [y] (sin y))"))
    for other in ("(fn [x] (cos x))", "(fn [x] (sin 1.0))", "(fn [x y] (sin x))", "(fn [x] (if x (sin x) x))"):
        assert not alpha_equal(read_model("(fn [x] (sin x))"), read_model(other))


expressions = st.recursive(
    st.sampled_from(["x", "y", "2", "-0.5", "1e-3", "Inf", "pi"]),
    lambda e: st.one_of(
        st.builds("(+ {} {})".format, e, e),
        st.builds("(sin {})".format, e),
        st.builds("(let [x {} z {}] (* x z {}))".format, e, e, e),
        st.builds("(if (< {} {}) {} {})".format, e, e, e, e),
        st.builds("((fn [y] (* y {})) {})".format, e, e),
        st.builds("(get [{} {}] 0)".format, e, e),
        st.builds("(fst #({} {}))".format, e, e),
        st.builds("(fold (fn [s x] (+ s {})) {} (build 3 (fn [y] {})))".format, e, e, e),
        st.builds("(do {} {})".format, e, e),
        st.builds("(and (< {} 1) (not (> {} 2)))".format, e, e).map("(if {} 1 2)".format),
    ),
    max_leaves=12,
)


@given(expressions)
@settings(max_examples=150)
def test_generated_text_reads_back_as_itself(text: str) -> None:
    f = read_model(f"(fn [x y] {text})")
    printed = print_lambda(f)
    assert alpha_equal(read_model(pformat(printed)), f)
    assert alpha_equal(read_model(str(printed)), f)


@given(expressions)
@settings(max_examples=25)
def test_generated_programs_mean_the_same_when_read_back(text: str) -> None:
    model = hyad.model(f"(fn [x y] {text})", namespace={"pi": 3.141592653589793})
    for plain in (True, False):
        program = model.program(plain=plain)
        again = hyad.model(pformat(print_program(program)), namespace={}).program(plain=plain)
        np.testing.assert_equal(python_callable(again)(0.5, -1.25), python_callable(program)(0.5, -1.25))


def test_names_that_differ_only_in_their_variables_stay_apart() -> None:
    text = pformat(print_lambda(read_model("(fn [x t] (let [t1 (sin x)  t (* t t1)  t (+ t x)] (/ t t1)))")))
    f = read_model(text)
    assert alpha_equal(f, read_model("(fn [x t] (let [t1 (sin x)  t (* t t1)  t (+ t x)] (/ t t1)))"))
    np.testing.assert_allclose(as_hy(text)(0.5, 2.0), (2.0 * np.sin(0.5) + 0.5) / np.sin(0.5))


def test_stages_are_ordered_lazy_and_named() -> None:
    f = hyad.model('(defmodel ring [r R] "its area" (* 3.0 (- (* R R) (* r r))))')
    stages = hyad.stages(f)
    assert list(stages)[:6] == ["source", "anf", "typed", "forward", "reverse", "optimised"]
    assert {"simplified", "sympy", "latex", "python", "c"} <= set(stages)
    assert stages["anf"] is stages["anf"]
    assert stages["source"] == f.source
    assert "double ring(double r, double R)" in stages["c"]
    assert stages["c"](1.0, 2.0) == stages["python"](1.0, 2.0) == stages["source"](1.0, 2.0) == 9.0
    assert repr(stages["anf"]) == str(stages["anf"]) == hyad.show(f)
    assert hyad.show(f, "typed").startswith("(fn [#^ Real r #^ Real R]")
    with pytest.raises(HyadError, match="there is no stage 'assembler'") as error:
        hyad.show(f, "assembler")
    assert "typed" in error.value.hint and "latex" in error.value.hint


def test_whether_there_is_a_stage() -> None:
    stages = hyad.stages("(fn [x] (> x 1.0))")
    assert "c" in stages and "reverse" not in stages and "assembler" not in stages
    assert repr(stages).startswith("<stages of") and "optimised" in repr(stages)


def test_the_source_of_a_derivative_is_the_operator_on_the_users_text() -> None:
    f = hyad.model('(defmodel ring [r R] "its area" (* 3.0 (- (* R R) (* r r))))')
    assert hyad.show(hyad.grad(f, wrt="r"), "source") == "(grad (fn [r R] (* 3.0 (- (* R R) (* r r)))) :wrt r)"
    assert hyad.show(hyad.grad(f, wrt="r")).startswith("(grad (fn [r R]\n")


def test_what_has_no_derivative_has_no_such_stage() -> None:
    stages = hyad.stages(hyad.model("(fn [x] (> x 1.0))"))
    assert "forward" not in list(stages) and "reverse" not in list(stages) and "c" in list(stages)


def test_integers_are_not_differentiated_by() -> None:
    f = hyad.model(MODELS["check"][0])
    assert hyad.show(f, "reverse", args=(V, 1))(V, 1)[0] == 4.0
    np.testing.assert_array_equal(hyad.show(f, "reverse", args=(V, 1))(V, 1)[1], [0.0, 4.0, 0.0])


def test_an_integer_that_is_not_needed_as_one_is_differentiated_by() -> None:
    """As ``grad`` does: a tangent along it was dropped, and the reverse stage refused."""
    ring = hyad.model("(defmodel ring [r R] (* 3.0 (- (* R R) (* r r))))")
    assert hyad.show(ring, "forward", args=(1, 2.0))(1, 2.0, 1, 0.0) == -6.0
    assert hyad.show(ring, "forward", args=(1, 2))(1, 2, 0, 1) == 12.0
    assert hyad.show(ring, "reverse", args=(1, 2))(1, 2) == (9.0, (-6.0, 12.0))
    assert list(hyad.cost(ring, args=(1, 2)).columns) == ["value", "forward", "reverse"]
    assert hyad.cost(hyad.grad(ring), args=(1, 2)).why == hyad.cost(hyad.grad(ring)).why
    power = hyad.model("(fn [x n] (ifold (fn [r i] (* r x)) 1.0 n))")
    assert hyad.show(power, "forward", args=(2, 3))(2, 3, 1, 0) == 12.0
    assert hyad.show(power, "reverse", args=(2, 3))(2, 3) == (8.0, 12.0)


def test_a_model_of_declared_integers_has_no_derivative() -> None:
    double = hyad.model("(fn [#^ Int k] (* 2.0 k))")
    assert not {"forward", "reverse"} & set(hyad.stages(double))
    for stage in ("forward", "reverse"):
        with pytest.raises(DerivativeError, match="there is no real parameter"):
            hyad.show(double, stage)


def test_functions_stay_the_packages_own_after_their_modules_are_imported() -> None:
    import hyad.emit
    import hyad.stages

    assert callable(hyad.stages) and callable(hyad.emit)


def test_runtime_refuses_what_a_model_refuses() -> None:
    with pytest.raises(hyad.BoundsError, match="index 3 in an array of length 3"):
        as_hy("(fn [i] (require-index i 3))")(3)
    with pytest.raises(hyad.ModelTypeError, match="lengths 2 and 1"):
        as_hy("(map (fn [a b] a) [1.0 2.0] [1.0])")


def test_runtime_has_the_prelude_and_every_primitive() -> None:
    from hyad.program.primitives import BUILTIN

    syntax = {"and", "or", "not", "neg"}
    assert {hy.mangle(name) for name in BUILTIN - syntax} <= set(hyad.runtime.__all__)
    np.testing.assert_array_equal(as_hy("(mat-mul [[1.0 2.0]] [[3.0] [4.0]])"), [[11.0]])
    assert as_hy("(fold + 0.0 [1.0 2.0])") == 3.0 and as_hy("(min 3 1 2)") == 1
    for name in prelude_texts():  # Hy reads them all: its `fn` takes no tuple apart
        assert callable(hyad.runtime._evaluated(name))


def test_runtime_sorts_and_adds_at_places() -> None:
    v = np.random.default_rng(0).normal(size=150).round(1)
    v[7] = np.nan
    np.testing.assert_array_equal(as_hy("sort")(v), np.sort(v))
    np.testing.assert_array_equal(as_hy("argsort")(v), np.argsort(v, kind="stable"))
    assert as_hy("argmax")(v) == 7 and as_hy("argmin")(v[8:]) == np.argmin(v[8:])
    assert as_hy("searchsorted")(np.arange(5.0), 2.5) == 3
    np.testing.assert_array_equal(as_hy("(scatter-add (zeros 3) [0 1 1] [1.0 2.0 4.0])"), [1.0, 6.0, 0.0])
    np.testing.assert_array_equal(
        as_hy("scatter_add")(np.zeros((3, 2)), [0, 1, 1], np.ones((3, 2))), [[1, 1], [2, 2], [0, 0]]
    )
    assert as_hy("(let [t (ref 9.0)] (while (> (deref t) 1.0) (set! t (* (deref t) 0.5))) (deref t))") == 0.5625


WHOLE = {
    "a list": ("(fn [x n] (letrec [l (fn [n] (if (< n 1) nil (cons (* x n) (l (- n 1))))) s (fn [l] (if (null? l) 0"
               " (+ (car l) (s (cdr l)))))] (s (l n))))", (2.0, 3)),
    "a while": ("(fn [x] (let [t (ref x)] (while (> (deref t) 1.0) (set! t (* (deref t) 0.5))) (deref t)))", (9.0,)),
    "functions in functions": ("(fn [x n] (letrec [go (fn [n k] (if (= n 0) (k x) (go (- n 1) (fn [y] (k (* y n))))))]"
                               " (go n (fn [z] z))))", (2.0, 3)),
    "a list of numbers": ("(fn [l k] (fold (fn [a x] (+ (sin a) (* k x))) 0.0 l))", ((1.0, (2.0, (0.5, None))), 0.5)),
    "a tree": ("(fn [t p] (letrec [go (fn [t] (if (num? t) (* p t) (* (go (fst t)) (go (snd t)))))] (go t)))",
               (((1.5, 2.0), 0.5), 0.5)),
    "a sum": ("(fn [x] (case (if (> x 0) (inl x) (inr #(x 2.0))) (inl y) (* y y) (inr p) (* (fst p) (snd p))))",
              (3.0,)),
}  # fmt: skip


@pytest.mark.parametrize("stage", ["typed", "optimised", "forward", "reverse"])
@pytest.mark.parametrize("name", WHOLE)
def test_stages_of_the_whole_language_read_back_and_evaluate(name: str, stage: str) -> None:
    text, args = WHOLE[name]
    made = hyad.stages(hyad.model(text, namespace={}), args=args)[stage]
    given = (*args, *args) if stage == "forward" else args
    again = hyad.model(str(made), namespace={})
    assert flat(again(*given)) == pytest.approx(flat(made(*given)), rel=1e-14)


def flat(value: object) -> list[float]:
    """The numbers of a result, in order."""
    if isinstance(value, tuple):
        return [x for part in value for x in flat(part)]
    return [] if value is None else [float(value)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "(fn [m] (map concat m m))",
        "(fn [m] (concatenate #(m m) 1))",
        "(fn [m] (map (fn [r] (concat (slice r 0 (// (len r) 2)) (slice r (// (len r) 2) (len r)))) m))",
        "(fn [m] (if (> (get m 0 0) 0) (map (fn [r] (slice r 0 (// (len r) 2))) m) (map (fn [r] (repeat r 2)) m)))",
    ],
)
def test_a_size_computed_inside_is_computed_outside(text: str) -> None:
    """Of rows, in every stage; and in a branch, where both give arrays of one rank."""
    f, m = hyad.model(text, namespace={}), np.ones((2, 4))
    made = hyad.stages(f, args=(m,))
    for name in ("typed", "optimised", "forward", "reverse"):
        assert str(made[name])


def test_arrays_of_integers_and_truth_values_that_change_read_back() -> None:
    f = hyad.model(
        """(fn [#^ Int n x] (let [c (build n (fn [i] 0))  d (build n (fn [i] False))]
          (for [i (range n)]
            (set-at! c i (+ i (if (get d i) 1 0)))
            (set-at! d (% (+ i 1) n) True))
          #(c d (* x (sum (map (fn [k] (real k)) c))))))""",
        namespace={},
    )
    for stage in ("typed", "optimised"):
        again = hyad.model(str(hyad.show(f, stage, args=(4, 2.0))), namespace={})
        for got in (again(4, 2.0), hyad.run(again, 4, 2.0), f(4, 2.0)):
            assert [x.dtype.kind for x in got[:2]] == ["i", "b"] and got[2] == 18.0


@pytest.mark.parametrize("start", [9.0, 0.5])
def test_a_while_reads_back_and_is_run(start: float) -> None:
    f = hyad.model(
        """(fn [x] (let [r (ref x)  n (ref 0.0)]
             (while (> (deref r) 1.0) (set! n (+ (deref n) (* x (deref r)))) (set! r (* 0.5 (deref r))))
             (+ (deref r) (deref n))))""",
        namespace={},
    )
    for stage in ("typed", "optimised"):
        again = hyad.model(str(hyad.show(f, stage, args=(start,))), namespace={})
        assert "iterate" in again.source
        assert again(start) == hyad.run(again, start) == f(start)
        assert hyad.run(hyad.grad(again), start) == pytest.approx(hyad.grad(f)(start))
    backwards = hyad.model(str(hyad.show(f, "reverse", args=(start,))), namespace={})
    assert hyad.run(backwards, start) == pytest.approx((f(start), hyad.grad(f)(start)))


@pytest.mark.parametrize("start", [9.0, 0.5])
def test_what_a_while_stacks(start: float) -> None:
    """Of as many rows as there are rounds, none included."""
    text = """(fn [x] (iterate (fn [a] (> a 1.0)) (fn [a] #((* 0.5 a) a)) x))"""
    halves = [start / 2**k for k in range(4)] if start > 1 else []
    wanted = start / 2 ** len(halves), len(halves), halves
    for got in (
        hyad.model(text, namespace={})(start),
        hyad.run(hyad.model(text, namespace={}), start),
        as_hy(text)(start),
    ):
        assert got[:2] == wanted[:2] and list(got[2:][0] if got[2:] else []) == wanted[2]
    assert len(hyad.run(hyad.model(text, namespace={}), start)) == 3
