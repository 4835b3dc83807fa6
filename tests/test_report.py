"""``hyad.explain``, ``hyad.cost``, and optimisations switched off."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hyad
import oracle
from hyad.cli import main
from hyad.codegen.c import print_c
from hyad.core import Loop
from hyad.errors import HyadError, ModelTypeError
from hyad.passes.optimise import PIPELINE, named
from hyad.program.counts import ASSUMED, cost
from hyad.report import _memory as memory_of

ROWS = """(fn [A x]
  (fold + 0.0 (build (len A) (fn [i]
    (exp (- (fold + 0.0 (build (len x) (fn [j] (* (get A i j) (get x j)))))))))))"""
A, X = np.linspace(-1, 1, 12).reshape(3, 4), np.array([0.3, -0.2, 0.7, 0.1])


def work(f, args):
    return hyad.cost(f, args=args).columns


# ------------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    "text, args, operations, loads, stores",
    [
        ("(fn [x y] (+ (* x y) (sin x)))", (1.0, 2.0), 3, 0, 0),
        ("(fn [v] (fold + 0.0 v))", (np.ones(7),), 7, 7, 0),
        ("(fn [v] (map (fn [e] (* e 3)) v))", (np.ones(5),), 5, 5, 5),
        (
            "(fn [u v] (build [(len u) (len v)] (fn [i j] (* (get u i) (get v j)))))",
            (np.ones(4), np.ones(5)),
            20,
            24,
            20,
        ),
        ("(fn [x] (if (> x 0.0) (exp (sin x)) (* x x)))", (1.0,), 3, 0, 0),
        ("(fn [#^ Int n x] (ifold (fn [s i] (* s x)) 1.0 n))", (9, 2.0), 9, 0, 0),
    ],
)
def test_counts(text, args, operations, loads, stores):
    """As counted by hand: a comparison and a conversion are operations, a subscript is none."""
    model = hyad.model(text)
    found = work(model, args)["value"]
    assert (found.operations, found.loads, found.stores) == (operations, loads, stores)


def test_the_mean_of_a_triangle():
    """Rows of 0, 1, .., n - 1 products: n (n - 1) / 2 of them, and as many additions."""
    f = hyad.model("(fn [v] (ifold (fn [s i] (+ s (ifold (fn [t j] (+ t (* t (get v j)))) 1.0 i))) 0.0 (len v)))")
    found = cost(f.program(f.specs((np.ones(10),)), plain=True), None)
    assert found.operations == ASSUMED * (ASSUMED - 1) / 2 * 2 + ASSUMED


def test_loops_that_an_index_bounds_twice():
    """Sums of squares and of cubes of the index, not the square and the cube of its mean."""
    text = "(fn [v] (ifold (fn [s i] {}) 0.0 (len v)))"
    inner = "(ifold (fn [s j] (ifold (fn [s k] (* s (get v k))) s i)) s i)"
    for body, total in (inner, 328350), (f"(ifold (fn [s l] {inner}) s i)", 24502500):
        f = hyad.model(text.format(body))
        found = cost(f.program(f.specs((np.ones(10),)), plain=True), None)
        assert found.operations == pytest.approx(total) and found.loops == body.count("ifold") + 1


def test_what_cannot_be_counted_is_said():
    f = hyad.model("(fn [a] (let [x (ref a)] (while (> (deref x) 1.0) (set! x (/ (deref x) 2))) (deref x)))")
    assert "iterations of a while" in str(hyad.cost(f))
    g = hyad.model("(fn [x #^ Int m] (letrec [p (fn [n] (if (= n 0) 1.0 (* x (+ (p (- n 1)) x))))] (p m)))")
    assert "calls of p" in str(hyad.cost(g))


# ------------------------------------------------------------------------------------------------- cards


def test_a_card():
    card = hyad.cost(hyad.model(ROWS), args=(A, X))
    assert list(card.columns) == ["value", "forward", "reverse"]
    assert card.columns["value"].transcendental == 3
    assert card.columns["value"].operations == 3 * (4 * 2 + 3)
    assert "n = 3" in str(card) and "reverse" in str(card)
    assert card.memory["reverse"]["source"] == len(hyad.show(hyad.value_and_grad(ROWS), "c", args=(A, X)))


def test_a_value_and_its_gradient_share_the_rows():
    """The exponential of a row is needed by both; four rows of the value at once would hide that."""
    assert work(hyad.model(ROWS), (np.ones((30, 40)), np.ones(40)))["reverse"].transcendental == 30


@pytest.mark.parametrize(
    "text, mode",
    [
        ("(fn [#^ (Vec 3) v] (build 12 (fn [i] (* (real i) (get v 0) (get v 2)))))", "forward: 3 inputs, 12 results"),
        ("(fn [#^ (Vec 12) v] [(get v 0) (get v 11)])", "reverse: 12 inputs, 2 results"),
        ("(fn [#^ (Vec n) v] (map sin v))", "reverse: any number of inputs, any number of results"),
    ],
)
def test_why_a_mode_was_taken(text, mode):
    assert mode in str(hyad.cost(hyad.jacobian(hyad.model(text))))


def test_a_gradient_that_takes_tangents_along_says_so():
    f = hyad.model("(fn [x n] (ifold (fn [s i] (sin (* s x))) x n))")
    card = hyad.cost(hyad.grad(f, wrt="x"), args=(0.3, 50))
    assert "forward, beside the value: 1 input, 1 result" in str(card)
    assert card.columns["grad"].stores == 0  # no state is remembered
    back = hyad.cost(hyad.grad(f, wrt="x"), args=(0.3, 50), without="few-inputs")
    assert "reverse, at once: 1 input, 1 result" in str(back) and back.columns["grad"].stores > 0


@pytest.mark.parametrize("told", [hyad.cost, hyad.explain])
@pytest.mark.parametrize("derived", [lambda f: f, hyad.grad])
def test_arguments_that_a_call_refuses_are_not_counted(told, derived):
    f = hyad.model("(fn [#^ (Mat p 3) m #^ (Vec p) v] (+ (sum m) (sum v)))")
    with pytest.raises(ModelTypeError, match=r"`m` wants a float64 array of shape \(p, 3\); its dimension 2 is 4"):
        told(derived(f), args=(np.ones((2, 4)), np.ones(2)))
    with pytest.raises(ModelTypeError, match=r"`v` wants .* its dimension 1 is 5, where p is 2"):
        told(derived(f), args=(np.ones((2, 3)), np.ones(5)))


def test_a_sparse_derivative_is_counted_beside_the_dense_one():
    x = np.ones(10)
    chain = hyad.model("(fn [x] (build (- (len x) 1) (fn [i] (* (get x i) (get x (+ i 1))))))")
    assert "sparse: 18 of 9 x 10 entries, blocks of 1 x 2" in str(hyad.cost(hyad.jacobian(chain), args=(x,)))
    energy = hyad.model("(fn [x] (ifold (fn [s i] (+ s (* (get x i) (get x (+ i 1))))) 0.0 (- (len x) 1)))")
    card = hyad.cost(hyad.hessian(energy), args=(x,))
    assert "sparse: 18 of 10 x 10 entries, 2 forward passes; columns without a row in common share" in str(card)
    assert 0 < card.columns["sparse"].work and card.memory["sparse"]["source"] > 0
    exponentials = hyad.model("(fn [x] (build (len x) (fn [i] (exp (* (get x i) (get x 0))))))")
    card = hyad.cost(hyad.jacobian(exponentials), args=(np.ones(30),))
    assert card.columns["sparse"].transcendental == 30 and card.columns["sparse"].stores < 200
    assert card.columns["jacobian"].stores >= 900


def test_sizes_that_follow_from_those_given():
    """The cotangent of n - 1 results was counted as one of 100, and the workspace was said in names of the C."""
    f = hyad.model("(fn [#^ (Vec n) x] (build (- (len x) 1) (fn [i] (exp (get x (+ i 1))))))")
    card = hyad.cost(f, args=(np.ones(31),))
    assert card.columns["reverse"].transcendental == 30 and card.memory["reverse"]["workspace"] in (0, 8 * 30)
    assert hyad.cost(f).columns["reverse"].transcendental == 99
    rows = hyad.model("(fn [m v] (softmax (@ m (map exp v))))")
    for memory in hyad.cost(rows, args=(np.ones((4, 5)), np.ones(5))).memory.values():
        assert isinstance(memory["workspace"], int) and memory["workspace"] <= 8 * 40


# ------------------------------------------------------------------------------------------- explanations


def test_what_hangs_on_known_integers_is_explained():
    """Without folding such a model has no types."""
    row = "(fn [n y] (if (= n 0) y [(f (- n 1) (* 0.5 y)) (f (- n 1) (sin y))]))"
    f = hyad.model(f"(fn [x] (letrec [f {row}] (sum (get (f 2 x) 0))))")
    assert "sin" in str(hyad.explain(hyad.grad(f)))
    x = 0.3
    assert hyad.stages(f)["typed"](x) == pytest.approx(0.25 * x + np.sin(0.5 * x), rel=1e-14)


def test_steps_follow_one_another():
    model = hyad.grad(hyad.model(ROWS))
    told = hyad.explain(model, args=(A, X))
    sizes = [s.before.bindings for s in told.steps] + [told.steps[-1].after.bindings]
    assert [s.after.bindings for s in told.steps] == sizes[1:]
    assert sizes[0] == cost(model.program(model.called_as((A, X)), plain=True)).bindings
    assert sizes[-1] == cost(model.optimised(model.called_as((A, X)))).bindings
    assert told.steps[0].name == "building" and "fuse" in [s.name for s in told.steps]
    assert "as differentiated" in str(told) and "as compiled" in str(told)


def test_rules_are_told_with_their_places():
    told = hyad.explain(hyad.model("(fn [x]\n  (* 1 (sin x)))"))
    (span,) = told.fired()["mul-one-left"]
    assert span.text == "(* 1 (sin x))" and "(* 1 (sin x)) at 2:3" in str(told)


def test_shared_and_hoisted_work_is_told():
    told = hyad.explain(hyad.model("(fn [v x] (map (fn [e] (+ e (sin x) (sin x))) v))"), args=(X, 1.0))
    assert {"sharing", "hoisting"} <= told.fired().keys()


# --------------------------------------------------------------------------------------------- switched off

MODELS = [
    (hyad.value_and_grad, ROWS, (A, X)),
    (hyad.hessian, "(fn [#^ (Vec n) x] (fold + 0.0 (map (fn [e] (* e e (exp e))) x)))", (X,)),
    (hyad.jacobian, "(fn [#^ (Vec 3) v] (build 4 (fn [i] (* (real i) (get v 0) (sin (get v 2))))))", (X[:3],)),
    (hyad.grad, "(fn [a] (letrec [p (fn [n x] (if (= n 0) x (p (- n 1) (* a (sin x)))))] (p 6 a)))", (0.7,)),
]


@pytest.mark.some(10)
@pytest.mark.parametrize("name", ["rules", "sharing", "hoisting", *dict.fromkeys(map(named, PIPELINE))])
def test_each_optimisation_can_be_switched_off(name):
    for derive, text, args in MODELS:
        f = derive(hyad.model(text))
        got = hyad.compile(f, target="python", args=args, without=name)(*args)
        found = oracle.mismatch(got, f(*args), 1e-12)
        assert found is None, f"{text}: {found}"


def test_without_all_the_value_is_the_same():
    everything = list(hyad.optimisations(by_rule=True))
    for derive, text, args in MODELS:
        f = derive(hyad.model(text))
        compiled = hyad.compile(f, args=args, without=everything)
        assert oracle.mismatch(compiled(*args), f(*args), 1e-12) is None


@pytest.mark.parametrize(
    "name, column", [("fuse", "arrays"), ("sharing", "operations"), ("mul-one-left", "operations")]
)
def test_what_is_switched_off_does_not_happen(name, column):
    f = hyad.model("(fn [v] (let [s (fold + 0.0 (map sin (map (fn [e] (* 1.0 e)) v)))] (+ (* s s) (* s s))))")
    most = hyad.cost(f, args=(X,)).columns["value"]
    less = hyad.cost(f, args=(X,), without=name).columns["value"]
    assert getattr(less, column) > getattr(most, column)
    assert name not in hyad.explain(f, args=(X,), without=name).fired()


def test_switched_off_inside_one_call_only():
    f = hyad.model("(fn [v] (fold + 0.0 (map sin v)))")
    loops = [
        sum(type(b.op) is Loop for b in hyad.compile(f, args=(X,), without=w).program.body.binds)
        for w in ("fuse", (), ("fuse", "jam"))
    ]
    assert loops == [2, 1, 2]


@pytest.mark.parametrize("call", [hyad.explain, hyad.cost, hyad.compile])
def test_an_unknown_optimisation(call):
    with pytest.raises(HyadError, match="(?s)no optimisation 'fuze'.*did you mean fuse"):
        call(hyad.model("(fn [x] x)"), without="fuze")


def test_every_optimisation_says_what_it_does():
    assert all(hyad.optimisations(by_rule=True).values())


def test_a_model_without_keeps_that():
    """One made without an optimisation is compiled without it, and without more."""
    f = hyad.model("(fn [#^ (Vec n) v] (fold + 0.0 (map sin (map (fn [x] (* 2.0 x)) v))))", namespace={})
    for less in (f.without("fuse"), f.without(["fuse", "jam"])):
        program = hyad.compile(less, args=(X,), without="share").program
        assert sum(type(b.op) is Loop for b in program.body.binds) > 1
    assert sum(type(b.op) is Loop for b in hyad.compile(f, args=(X,)).program.body.binds) == 1
    with pytest.raises(HyadError, match="no optimisation 'fuze'"):
        f.without("fuze")
    for derive in (hyad.grad, hyad.hessian, lambda less: hyad.grad(hyad.grad(less), wrt="v")):
        assert derive(f.without("fuse")).off == ("fuse",) and derive(f).off == ()
    sources = [hyad.compile(g, args=(X,)).source for g in (hyad.grad(f.without("fuse")), hyad.grad(f).without("fuse"))]
    assert sources[0] == sources[1] != hyad.compile(hyad.grad(f), args=(X,)).source


def test_a_stage_without():
    f = hyad.model("(fn [v] (fold + 0.0 (map sin v)))")
    assert "build" in hyad.show(f, "optimised", args=(X,), without="fuse")
    assert "build" not in hyad.show(f, "optimised", args=(X,))


# ------------------------------------------------------------------------------------------ command line


@pytest.fixture
def ring(tmp_path):
    path = tmp_path / "ring.hy"
    path.write_text(
        "(require hyad.macros [defmodel])\n(defmodel total [v] (fold + 0.0 (map (fn [e] (* e (exp e))) v)))\n"
    )
    return str(path)


def test_commands(ring, capsys):
    assert main(["explain", ring, "total", "--grad", "[1 2 3]"]) == 0
    assert "total-grad at n = 3" in capsys.readouterr().out
    assert main(["explain", ring, "total", "--grad", "--without", "fuse,share", "[1 2 3]"]) == 0
    assert "switched off: fuse, share" in capsys.readouterr().out
    assert main(["cost", ring, "total", "[1 2 3]"]) == 0
    assert "transcendental" in capsys.readouterr().out
    assert main(["cost", ring, "total", "--without", "nothing", "[1 2 3]"]) == 1
    assert "no optimisation 'nothing'" in capsys.readouterr().err


# ------------------------------------------------------------------------ memory, as the compiled program takes it

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "examples/nist.hy": "hahn1 enso",
    "examples/bundle_jacobian.hy": "blocks",
    "tests/bench/problems/nested.hy": "saddle_rr particle_rr",
    "tests/bench/problems/det.hy": "determinant grad/determinant",
    "tests/bench/problems/fibonacci.hy": "fibonacci grad/fibonacci",
    "tests/bench/problems/llsq.hy": "llsq grad/llsq",
    "tests/bench/problems/kmeans.hy": "kmeans grad/kmeans",
    "tests/bench/problems/gmm.hy": "gmm",
}
ARRAY = re.compile(r"^( +(?:const )?(?:double|long long|int) \w+\[)(\d+)(\].*)$", re.MULTILINE)


def frames_of(source: str, header: tuple[str, str], folder: Path) -> tuple[dict[str, int], set[str]]:
    """What each function takes of the stack where the compiler keeps all that is declared apart; and what is called."""
    (folder / "f.c").write_text(source)
    (folder / header[0]).write_text(header[1])
    flags = ["-O0", "-w", "-fstack-usage", "-fstack-reuse=none", "-c", "f.c", "-o", "f.o"]
    subprocess.run(["cc", *flags], cwd=folder, check=True)
    rows = [line.split("\t") for line in (folder / "f.su").read_text().splitlines()]
    called = subprocess.run(["nm", "-u", "f.o"], cwd=folder, check=True, capture_output=True, text=True).stdout
    return {place: int(size) for place, size, _ in rows}, set(called.split())


@pytest.mark.some(3)
@pytest.mark.parametrize("path", PROGRAMS)
def test_the_card_says_the_memory_that_the_program_takes(path: str, tmp_path: Path) -> None:
    """The stack: local arrays of twice the length take that much more of it. Without an arena nothing is allocated."""
    module = hyad.load(ROOT / path)
    for name in PROGRAMS[path].split():
        operator, _, name = name.rpartition("/")
        f = hyad.grad(getattr(module, name)) if operator else getattr(module, name)
        program = f.optimised(f.specs())
        said, printed = memory_of(program), print_c(program)
        header = (f"{printed.name}.h", printed.header)
        frames, called = frames_of(printed.source, header, tmp_path)
        doubled, _ = frames_of(ARRAY.sub(lambda m: f"{m[1]}{2 * int(m[2])}{m[3]}", printed.source), header, tmp_path)
        taken = sum(doubled.values()) - sum(frames.values())
        padding = 16 * (len(ARRAY.findall(printed.source)) + len(frames))
        assert abs(taken - said["stack"]) <= padding and (taken > 0) == (said["stack"] > 0), name
        assert said["arena"] == ("hyad_arena" in printed.prototype), name
        assert said["arena"] or not called & {"malloc", "calloc", "realloc", "alloca", "free"}, name


SPRINGS = "(fn [#^ (Vec n) x] (build (- (len x) 1) (fn [i] (- (exp (get x (+ i 1))) (* 2 (get x i))))))"


def test_a_card_of_a_model_with_many_results_has_the_sparse_jacobian_beside_both_modes() -> None:
    for card, n in ((hyad.cost(SPRINGS), 100), (hyad.cost(SPRINGS, args=[np.ones(30)]), 30)):
        assert list(card.columns) == ["value", "forward", "reverse", "sparse"]
        assert card.columns["sparse"].transcendental == n - 1
        assert f"sparse: {2 * n - 2} of {n - 1} x {n} entries, blocks of 1 x 2" in str(card)
        assert "a Jacobian is reverse: a loop over the results, each a reverse pass" in card.why
    many = hyad.cost(SPRINGS, args=[np.ones(6_000)])
    assert "sparse" not in many.columns and "not looked at for more than 5 000 inputs" in str(many)
    for text in ("(fn [#^ (Vec n) x] (sum x))", "(fn [#^ (Vec n) x] (> x 0))", "(fn [x] (full 3 x))"):
        assert "sparse" not in hyad.cost(text).columns
    picked = "(fn [#^ (Vec n) x #^ (Arr Int m) at] (map (fn [i] (get x i)) at))"  # the pattern depends on ``at``
    assert "sparse" not in hyad.cost(picked).columns
    assert "sparse: 2 of 2 x 3 entries" in str(hyad.cost(picked, args=[np.ones(3), np.array([0, 2])]))


def test_a_card_says_how_many_bytes_of_the_arena_a_round_and_a_call_take() -> None:
    until = "(fn [#^ (Vec n) v] (let [x (ref v)] (while (> (get (deref x) 0) 0.1) (set! x BODY)) (sum (deref x))))"
    squares = hyad.grad(until.replace("BODY", "(map (fn [a] (sin (* a a))) (deref x))"))
    for args, n in ((None, 100), ([np.ones(7)], 7)):
        card = hyad.cost(squares, args=args)
        assert f"arena of grad: {8 * n} bytes a round" in str(card)
        assert card.memory["value"]["taken"] == {} and card.memory["grad"]["taken"] == {"a round": 8 * n}
    total = "(fn [l x] (letrec [f (fn [l] (if (null? l) x (* (sin (car l)) (f (cdr l)))))] (f l)))"
    card = hyad.cost(hyad.grad(total, wrt="x"), args=[(1.0, (2.0, None)), 3.0])
    rows = {line[:14]: line for line in str(card).splitlines()}
    assert rows["bytes of arena"].split()[3:5] == ["takes", "one"]  # recursion that makes nothing


def test_a_size_without_a_name_is_not_called_as_a_parameter() -> None:
    """A card took the one for the other."""
    f = hyad.model("(fn [v #^ Int n] (ifold (fn [s i] (sin (+ s (get v (% i 2))))) 0.0 n :checkpoint 3))")
    card = str(hyad.cost(hyad.grad(f, wrt="v"), args=(np.ones(7), 50)))
    assert card.startswith("f-grad at m = 7, n = 50\n") and "keeps 3 of its 50 states" in card
    for args in ((np.ones(7), 50), (np.ones(50), 7)):
        steps = f"of its {args[1]} states"
        assert steps in str(hyad.cost(hyad.grad(f, wrt="v"), args=args))
    many = hyad.model("(fn [n m k l p q n0 n1] (+ (sum n) (sum m) (sum k) (sum l) (sum p) (sum q) (sum n0) (sum n1)))")
    assert many(*[np.ones(k) for k in range(1, 9)]) == 36.0
