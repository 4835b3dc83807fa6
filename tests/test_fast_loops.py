"""What makes gradients of loops as fast as hand-written ones, judged by the programs and the C that come out: recursion
written out, searches differentiated at the place that they found, costly values remembered, iterations side by side."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Apply, Arr, If, Loop, Prim, all_binds, blocks_of
from hyad.errors import BoundsError
from hyad.program.counts import cost
from hyad.program.journal import without

DET = """
(defmodel minor [a j]
  (build [(- (len a) 1) (- (len a) 1)] (fn [r c] (get a (+ r 1) (if (< c j) c (+ c 1))))))
(defmodel det [a]
  (if (= (len a) 1)
    (get a 0 0)
    (ifold (fn [s j]
             (let [term (* (get a 0 j) (det (minor a j)))]
               (if (= (% j 2) 0) (+ s term) (- s term))))
           0.0 (len a))))
"""


def models(text: str, tmp_path) -> object:
    path = tmp_path / "models.hy"
    path.write_text(text)
    return hyad.load(path)


def operations(model, kind: type = Prim, name: str | None = None) -> int:
    body = model.optimised(model.specs()).body
    return sum(type(b.op) is kind and (name is None or b.op.name == name) for b in all_binds(body))


# ---------------------------------------------------------------------------- recursion written out


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_minors_are_shared(n: int, tmp_path) -> None:
    """n 2^(n-1) products and no more, where the naive recursion takes more than n!."""
    det = models(f"{DET}(defmodel whole [#^ (Mat {n} {n}) a] (det a))", tmp_path).whole
    assert operations(det, Apply) == 0
    assert operations(det, Prim, "*") <= n * 2 ** (n - 1)
    a = np.random.default_rng(n).normal(size=(n, n))
    assert det(a) == pytest.approx(np.linalg.det(a), rel=1e-12)
    cofactors = np.linalg.det(a) * np.linalg.inv(a).T
    np.testing.assert_allclose(hyad.grad(det)(a), cofactors, rtol=1e-11, atol=1e-12)


def test_a_size_known_at_run_time_keeps_the_recursion(tmp_path) -> None:
    det = models(f"{DET}(defmodel whole [#^ (Mat n n) a] (det a))", tmp_path).whole
    assert operations(det, Apply) == 1
    a = np.random.default_rng(5).normal(size=(5, 5))
    assert det(a) == pytest.approx(np.linalg.det(a), rel=1e-12)


def test_equal_calls_are_made_once(tmp_path) -> None:
    text = "(defmodel fib [n x] (if (< n 2) x (+ (fib (- n 1) x) (fib (- n 2) x))))(defmodel f [#^ Real x] (fib 30 x))"
    f = models(text, tmp_path).f
    assert operations(f, Apply) == 0 and operations(f) < 40
    assert f(1.0) == 1346269.0 and hyad.grad(f)(2.0) == 1346269.0


def test_recursion_without_a_known_end_stays(tmp_path) -> None:
    """The choice is a real's."""
    halves = "(defmodel halves [n x] (if (< x 1.0) x (+ (real n) (halves n (* 0.5 x)))))"
    f = models(f"{halves}(defmodel f [#^ Real x] (halves 3 x))", tmp_path).f
    assert f(10.0) == 4 * 3 + 10 / 16


# --------------------------------------------------------------------------- searches for the largest

LARGEST = "(fn [v] (fold max (get v 0) v))"
SPREAD = "(fn [v] (let [a (fold max (get v 0) v)  b (fold min (get v 0) v)] (* a (- a b))))"


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_largest_is_differentiated_where_it_stands(n: int) -> None:
    v = np.random.default_rng(n).normal(size=n)
    expected = np.zeros(n)
    expected[np.argmax(v)] = 1.0
    np.testing.assert_array_equal(hyad.grad(hyad.model(LARGEST))(v), expected)
    top, low = np.argmax(v), np.argmin(v)
    spread = np.zeros(n)
    spread[top] += 2 * v[top] - v[low]
    spread[low] -= v[top]
    np.testing.assert_allclose(hyad.grad(hyad.model(SPREAD))(v), spread, rtol=1e-14)
    second = np.zeros((n, n))
    second[top, top] += 2
    second[top, low] -= 1
    second[low, top] -= 1
    np.testing.assert_allclose(hyad.hessian(hyad.model(SPREAD))(v), second, atol=1e-14)


@pytest.mark.parametrize(
    "text, v, expected",
    [
        (LARGEST, [1.0, 2.0, 2.0], [0.0, 1.0, 0.0]),
        (LARGEST, [2.0, 2.0, 1.0], [1.0, 0.0, 0.0]),
        ("(fn [v] (fold (fn [m x] (max x m)) (get v 0) v))", [1.0, 2.0, 2.0], [0.0, 0.0, 1.0]),
        ("(fn [v] (fold min 5.0 v))", [7.0, 6.0], [0.0, 0.0]),
        ("(fn [v] (fold max 0.5 (map (fn [x] (* x x)) v)))", [-3.0, 1.0], [-6.0, 0.0]),
        ("(fn [v] (fold (fn [m x] (max m (* m x))) 2.0 v))", [1.5, 2.0], [4.0, 3.0]),
    ],
)
def test_ties_and_starts_of_a_search(text: str, v: list[float], expected: list[float]) -> None:
    """Ties as ``max`` has them; a start that wins; what only looks like a search."""
    np.testing.assert_allclose(hyad.grad(hyad.model(text))(np.array(v)), expected)


@pytest.mark.parametrize(
    "text, loops",
    [
        ("(fn [#^ (Vec n) v] (fold max (get v 0) v))", 1),
        ("(fn [#^ (Mat n m) a] (sum (map amax a)))", 2),  # the rows, and the elements of each
        ("(fn [#^ (Mat n m) a] (sum (map (fn [row] (amin (map square row))) a)))", 2),
    ],
)
def test_search_has_no_backward_loop(text: str, loops: int) -> None:
    gradient = hyad.grad(hyad.model(text, namespace={}))
    with without(["searches"]):
        assert operations(gradient, Loop) == loops


@pytest.mark.parametrize("shape", [(4, 1), (3, 5), (2, 70)])
def test_search_in_rows_is_differentiated_where_it_is_found(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    for a in (rng.normal(size=shape), rng.choice([0.0, 1.0, -1.0], shape)):
        expected = np.zeros(shape)
        expected[np.arange(shape[0]), (a * a).argmin(1)] = 2.0 * a[np.arange(shape[0]), (a * a).argmin(1)]
        text = "(fn [#^ (Mat n m) a] (sum (map (fn [row] (amin (map square row))) a)))"
        np.testing.assert_array_equal(hyad.grad(hyad.model(text, namespace={}))(a), expected)


# ---------------------------------------------------------------------------- remembered, not repeated


def test_costly_values_are_computed_once() -> None:
    """In a sum, in a loop that carries something, and where loops of several adjoints part."""
    total = hyad.model("(fn [#^ (Vec n) v] (log (fold (fn [s x] (+ s (exp x))) 0.0 v)))")
    assert operations(hyad.grad(total), Prim, "exp") == 1
    steps = """(fn [#^ (Vec n) w #^ (Vec n) b #^ Int k]
      (fold + 0.0 (ifold (fn [h i] (map (fn [w b x] (tanh (+ (* w x) b))) w b h)) b k)))"""
    gradient = hyad.grad(hyad.model(steps), wrt=("w", "b"))
    assert operations(gradient, Prim, "tanh") == 1
    w, b = np.array([0.3, -0.7, 1.1]), np.array([0.2, 0.4, -0.5])

    def value(w: np.ndarray, b: np.ndarray) -> np.ndarray:
        h = b
        for _ in range(4):
            h = np.tanh(w * h + b)
        return np.sum(h)

    for found, by in zip(gradient(w, b, 4), (0, 1)):
        for j in range(3):
            moved = [w.astype(complex), b.astype(complex)]
            moved[by][j] += 1e-30j
            assert found[j] == pytest.approx(np.imag(value(*moved)) / 1e-30, rel=1e-13)


def test_a_sum_of_calls_is_not_taken_in_each_of_two_loops() -> None:
    """The forward algorithm by whole arrays: each column's sum is remembered, and its logarithm goes on."""
    text = """(fn [#^ (Vec k) a #^ (Mat k k) m #^ (Mat n k) seen #^ (Arr Int n) which]
      (sum (fold (fn [a o] (+ (logsumexp (+ (expand-dims a 1) m) 0) (get seen o))) a which)))"""
    model = hyad.model(text)
    rng = np.random.default_rng(4)
    a, m, seen, which = rng.normal(size=3), rng.normal(size=(3, 3)), rng.normal(size=(4, 3)), np.array([2, 0, 3, 1])

    def value(a: np.ndarray, m: np.ndarray) -> np.ndarray:
        for o in which:
            a = np.log(np.exp(a[:, None] + m).sum(0)) + seen[o]
        return a.sum()

    assert model(a, m, seen, which) == pytest.approx(value(a, m), rel=1e-14)
    gradient = hyad.grad(model, wrt=("a", "m"))
    assert operations(gradient.without(["log-sums"]), Prim, "exp") == 2  # there, and back
    found = gradient(a, m, seen, which)
    for by, x in enumerate((a, m)):
        for j in np.ndindex(x.shape):
            moved = [a.astype(complex), m.astype(complex)]
            moved[by][j] += 1e-30j
            assert found[by][j] == pytest.approx(np.imag(value(*moved)) / 1e-30, rel=1e-12)


def test_sizes_of_an_iteration_are_not_remembered() -> None:
    """An array whose size changes from iteration to iteration would need an arena."""
    text = """(fn [#^ Real x #^ (Vec n) v] (ifold (fn [s i] (ifold (fn [t j] (+ t (* x (sin (* t (get v j))))))
                (+ s (get v i)) (+ i 1))) x (len v)))"""
    gradient = hyad.grad(hyad.model(text), wrt=("x", "v"))
    assert "arena" not in hyad.show(gradient, "c")
    g_x, _ = gradient(0.3, np.array([0.1, 0.2, 0.3]))
    assert math.isfinite(g_x)


# ---------------------------------------------------------------------------------------- side by side


@pytest.mark.parametrize("n", [1, 3, 4, 9, 17])
def test_polynomial_rows_side_by_side(n: int) -> None:
    """Sums, powers and additions to one array of adjoints, in the order that one iteration after the other has."""
    text = """(fn [#^ (Vec m) x #^ (Vec n) ts]
      (fold (fn [s t]
              (let [r (- t (fst (fold (fn [sp a] #((+ (fst sp) (* a (snd sp))) (* (snd sp) t))) #(0.0 1.0) x)))]
                (+ s (* r r))))
            0.0 ts))"""
    gradient = hyad.grad(hyad.model(text), wrt="x")
    rng = np.random.default_rng(n)
    x, ts = rng.normal(size=6), rng.normal(size=n)
    powers = ts[:, None] ** np.arange(6)
    expected = -2 * powers.T @ (ts - powers @ x)
    np.testing.assert_allclose(gradient(x, ts), expected, rtol=1e-11, atol=1e-11)


def test_arrays_that_cannot_overlap_are_marked() -> None:
    """Two pieces of the workspace in one innermost loop; not where an element is read beside the one written, unless it
    is carried from where it was."""
    steps = "(fn [#^ (Vec n) w #^ Int k] (fold + 0.0 (ifold (fn [h i] (map (fn [w x] (tanh (* w x))) w h)) w k)))"
    assert "HYAD_APART" in hyad.show(hyad.grad(hyad.model(steps), wrt="w"), "c")
    beside = "(fn [#^ (Vec n) w] (ifold (fn [h i] (update h i (* 2.0 (get h (max 0 (- i 1)))))) w (len w)))"
    assert "HYAD_APART" not in hyad.show(hyad.model(beside), "c")
    shifted = """(fn [#^ (Vec n) w]
      (let [a (map sin w)] (dot a (ifold (fn [h i] (update h (+ i {to}) (* (get a i) (get h (+ i {from})))))
                                         (map (fn [x] (/ 1.0 x)) a) (- (len w) 1)))))"""
    for at, out, marked in ((1, 1, True), (0, 1, True), (1, 0, False)):
        text = hyad.show(hyad.model(shifted.replace("{to}", str(out)).replace("{from}", str(at))), "c")
        assert text.count("  HYAD_APART\n") == 1 + marked


def test_an_index_that_is_not_the_first_has_one_before() -> None:
    """No check is left where ``i - 1`` is read for all but the first."""
    text = "(fn [#^ (Vec n) x] (build (len x) (fn [i] (if (= i 0) 1.0 (get x (- i 1))))))"
    assert "return 1" not in hyad.show(hyad.model(text), "c")
    assert operations(hyad.model(text), If) <= 1


# ------------------------------------------------------------------------------- directions written out

BODY = """(defmodel body [c p]
  (let [[a b d e f g h i j k l] c
        u (/ (- (* a (get p 0)) (* b (get p 1))) (sqrt (+ 1.0 (square a) (square b))))
        v (/ (+ (* d (exp (* e (get p 0)))) (* f (sin (get p 1)))) (+ 2.0 (cos (* g (get p 2)))))
        w (* (tanh (+ h (* i u))) (log (+ 2.0 (square (+ v j)))))]
    [(+ k (* l u w)) (+ k (* l v w (sqrt (+ 1.0 (* u u)))))]))
"""
ALONG = """(defmodel along [#^ (Vec 11) c #^ (Mat n 3) points]
  (map (fn [p] (build 11 (fn [i] (jvp (fn [e] (body e p)) c (one-hot 11 i))))) points))
"""


def test_unit_directions_are_written_out_where_that_saves_work(tmp_path) -> None:
    """A naive Jacobian by eleven numbers: most tangents along a unit vector are zero."""
    f = models(BODY + ALONG, tmp_path).along
    assert operations(f, Loop) == 1  # over the points
    loop = hyad.compile(f, without="unroll")
    c, points = np.linspace(0.3, 1.2, 11), np.random.default_rng(3).normal(size=(5, 3))
    np.testing.assert_allclose(hyad.compile(f, target="python")(c, points), loop(c, points), rtol=1e-12, atol=1e-14)
    here, there = (hyad.cost(f, without=w).columns["value"].work for w in ((), "unroll"))
    assert here < 25_000 and here < 0.61 * there


def test_a_loop_that_saves_nothing_stays(tmp_path) -> None:
    """Every iteration does the same: written out it would only be longer."""
    terms = " ".join(f"(sin (* {k}.5 (get x i)))" for k in range(20))
    f = models(f"(defmodel f [#^ (Vec 30) x] (build 30 (fn [i] (+ {terms}))))", tmp_path).f
    assert operations(f, Loop) == 1


# ------------------------------------------------------------------------------ memory of results

BEFORE_RESULTS = {  # text, what it gives, and how many arrays need memory of their own
    "divided by the sum": (
        "(fn [#^ (Vec n) x] (let [y (map exp x)] (map (fn [a] (/ a (sum y))) y)))",
        lambda x: np.exp(x) / np.exp(x).sum(),
        0,
    ),
    "turned round": (
        "(fn [#^ (Vec n) x] (let [y (map exp x)] (build (len x) (fn [i] (/ (get y (- (- (len x) i) 1)) (sum y))))))",
        lambda x: (np.exp(x) / np.exp(x).sum())[::-1],
        1,
    ),
    "two": (
        """(fn [#^ (Vec n) x] (let [y (map exp x) s (sum y) z (map (fn [a] (/ a s)) y) t (fold max 0.0 z)]
             #((build (len x) (fn [i] (* t (get z (- (- (len x) i) 1)))))
               (map (fn [a b] (- a (* t b))) z y))))""",
        lambda x: ((z := (y := np.exp(x)) / y.sum()).max() * z[::-1], z - z.max() * y),
        1,
    ),
    "rows": (
        "(fn [#^ (Mat n m) x] (let [y (map (fn [r] (map exp r)) x) s (sum y)] (map (fn [r] (/ r s)) y)))",
        lambda x: np.exp(x) / np.exp(x).sum(),
        0,
    ),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", BEFORE_RESULTS)
def test_an_array_that_is_done_with_lies_in_the_memory_of_a_result(name, threads):
    text, numpy, own = BEFORE_RESULTS[name]
    f = hyad.compile(hyad.model(text), threads=threads)
    for n in (1, 7, 40):
        x = np.random.default_rng(n).normal(size=(n, 3) if "Mat" in text else n)
        got, want = f(x), numpy(x)
        for g, w in zip(got, want) if type(want) is tuple else [(got, want)]:
            np.testing.assert_allclose(g, w, rtol=1e-13)
    if threads == 1:
        assert f.source.count("= work") == own


# ------------------------------------------------------------------------------------ calls in branches

COX = """(fn [#^ (Vec n) eta #^ (Vec n) t]
  (ifold (fn [s i] (- (+ s (get eta i))
                      (log (ifold (fn [r j] (+ r (if (>= (get t j) (get t i)) CALL 0.0))) 0.0 (len t)))))
         0.0 (len t)))"""


def depths(f: hyad.Model, name: str) -> set[int]:
    """In how many loops the operations of a name are."""
    found = set()

    def walk(block, depth):
        for bind in block.binds:
            if isinstance(bind.op, Prim) and bind.op.name == name:
                found.add(depth)
            for inner in blocks_of(bind.op):
                walk(inner, depth + isinstance(bind.op, Loop))

    walk(f.optimised(f.specs((np.ones(9), np.ones(9)))).body, 0)
    return found


@pytest.mark.parametrize(
    "call, name, depth",
    [("(exp (get eta j))", "exp", 1), ("(exp (* (get eta j) (get t i)))", "exp", 2), ("(/ 1.0 (get eta j))", "/", 2)],
    ids=["of the inner index", "of both", "no call"],
)
def test_calls_in_a_branch_that_an_outer_loop_does_not_change(call: str, name: str, depth: int) -> None:
    """``n`` exponentials, not ``n n``; a quotient is not worth its table where it may never be needed."""
    f = hyad.model(COX.replace("CALL", call))
    assert depths(f, name) == {depth} and max(depths(hyad.grad(f, wrt=0), name)) == depth
    rng = np.random.default_rng(3)
    assert hyad.check_grad(f, (rng.uniform(0.5, 1.5, 7), rng.normal(size=7)))
    assert hyad.compile(f)(np.empty(0), np.empty(0)) == 0.0


# ------------------------------------------------------------------------- rows, once and no more

MIXTURE = """(fn [#^ (Mat k d) mu #^ (Mat k d) scale #^ (Mat n d) x]
  (sum (map (fn [row] (logsumexp (build (len mu) (fn [k]
              (sum (square (/ (- row (get mu k)) (exp (get scale k)))))))))
            x)))"""
PAIRS = """(fn [#^ (Vec n) x #^ Int steps]
  (ifold (fn [s t] (+ s (ifold (fn [r i] (+ r (ifold (fn [q j] (+ q (exp (* (get x i) (get x j))))) s (len x))))
                               0.0 (len x))))
         0.0 steps))"""
PAYOFF = """(fn [#^ Real start #^ Real drift #^ Real spread #^ Real discount #^ (Mat n m) noise]
  (* discount
     (mean (map (fn [row]
                  (let [end (fold (fn [p z] (let [s (* (fst p) (exp (+ drift (* spread z))))] #(s (+ (snd p) s))))
                                  #(start 0.0) row)]
                    (max 0.0 (- (snd end) 2.0))))
                noise))))"""


def operations_by_depth(f: hyad.Model, name: str) -> list[int]:
    """In how many loops each operation of a name is."""
    found = []

    def walk(block, depth):
        for bind in block.binds:
            if isinstance(bind.op, Prim) and bind.op.name == name:
                found.append(depth)
            for inner in blocks_of(bind.op):
                walk(inner, depth + isinstance(bind.op, Loop))

    walk(f.optimised(f.specs()).body, 0)
    return sorted(found)


def test_calls_on_the_elements_of_a_matrix_are_made_once() -> None:
    """``k d`` exponentials of the scales, not ``n k d``, and ``n k`` of the rows, not twice as many."""
    f = hyad.model(MIXTURE)
    for model in (f, hyad.grad(f, wrt=(0, 1, 2))):
        found = operations_by_depth(model, "exp")
        assert found[0] == 2 and len(found) == 2
    rng = np.random.default_rng(2)
    for k, d, n in ((3, 2, 5), (1, 1, 1), (2, 3, 17), (2, 0, 3), (2, 2, 0)):
        mu, scale, x = rng.normal(size=(k, d)), rng.normal(size=(k, d)) * 0.3, rng.normal(size=(n, d))
        t = (((x[:, None] - mu) / np.exp(scale)) ** 2).sum(-1)
        assert f(mu, scale, x) == pytest.approx(np.log(np.exp(t).sum(1)).sum(), rel=1e-12)
    assert hyad.check_grad(f, (mu + 1, scale, rng.normal(size=(9, 2))))


def test_no_table_is_larger_than_the_arrays_that_are_there() -> None:
    """``n n`` exponentials of products of ``n`` numbers are not kept for the next step."""
    assert min(operations_by_depth(hyad.model(PAIRS), "exp")) >= 3


def test_a_gradient_whose_cotangent_is_known_goes_through_each_row_once() -> None:
    """The value of a path and its gradient are one loop over its steps and one back, not three, with one ``exp``."""
    f = hyad.model(PAYOFF)
    g = hyad.grad(f, wrt=(0, 1, 2, 3))
    assert operations_by_depth(g, "exp") == [2]
    apart_by = ["follow", "meet", "chains", "keep-calls"]
    apart, joined = (hyad.compile(g, without=["few-inputs", *off]).source for off in (apart_by, []))
    assert apart.count("exp(") == 2 and joined.count("exp(") == 1
    rng = np.random.default_rng(3)
    for n, m in ((5, 4), (1, 1), (17, 3), (3, 0)):
        assert hyad.check_grad(f, (1.5, 0.1, 0.3, 0.9, rng.normal(size=(n, m))))


# ------------------------------------------------------------------------------ iterations that do nothing

CUTOFF = """(fn [#^ (Mat n 3) x #^ Real reach]
  (ifold (fn [e i] (ifold (fn [e j]
      (let [d (- (get x i) (get x j))  r (dot d d)]
        (if (and (< i j) (< r (* reach reach))) (+ e (/ 1.0 (+ r 0.1))) e)))
    e (len x))) 0.0 (len x)))"""
NEAREST = """(fn [#^ (Vec k) a #^ (Vec k) r #^ (Vec n) x]
  (sum (map (fn [y] (snd (ifold (fn [best i]
         (let [q (- (* (get r i) (get r i)) (square (- y (get a i))))]
           (if (> q 0.0)
             (let [t (- y (sqrt q))] (if (< t (fst best)) #(t (exp (* t (get r i)))) best))
             best)))
       #(9.0 0.1) (len a)))) x)))"""


def additions_outside_of_branches(f: hyad.Model) -> int:
    """Additions to elements that stand in the body of an innermost loop itself."""
    loops = [b.op for b in all_binds(f.optimised(f.specs()).body) if isinstance(b.op, Loop)]
    inner = [x for x in loops if not any(isinstance(b.op, Loop) for b in all_binds(x.body))]
    return sum(isinstance(b.op, Prim) and b.op.name == "add-at" for x in inner for b in x.body.binds)


def test_a_pair_that_is_out_of_reach_adds_nothing() -> None:
    f = hyad.model(CUTOFF)
    assert additions_outside_of_branches(hyad.grad(f, wrt=0)) == 0
    rng = np.random.default_rng(5)
    for n, cut in ((6, 1.0), (6, 0.0), (6, 99.0), (1, 1.0), (0, 1.0)):
        x = rng.normal(size=(n, 3))
        got = hyad.grad(f, wrt=0)(x, cut)
        d = x[:, None] - x
        r = (d * d).sum(-1)
        weight = np.where((r < cut * cut) & ~np.eye(n, dtype=bool), -2.0 / (r + 0.1) ** 2, 0.0)
        np.testing.assert_allclose(got, (weight[..., None] * d).sum(1), rtol=1e-12, atol=1e-14)


def test_branches_in_branches_that_do_nothing() -> None:
    """What two conditions decide is done where both hold; what else the loop does it goes on doing."""
    f = hyad.model(NEAREST)
    g = hyad.grad(f, wrt=(0, 1))
    assert additions_outside_of_branches(g) == 0
    rng = np.random.default_rng(6)
    for k, n in ((5, 7), (1, 1), (0, 3), (3, 0)):
        a, r, x = rng.normal(size=k), rng.uniform(0.5, 1.5, k), rng.normal(size=n)
        assert k == 0 or hyad.check_grad(f, (a, r, x), wrt=(0, 1))
        plain = memoised.compile(g, without=["idle"])(a, r, x)
        for got, want in zip(g(a, r, x), plain):
            np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)


def test_a_branch_that_is_cheap_or_not_idle_leaves_the_loop_as_it_is() -> None:
    """Compilers choose between cheap values without a jump; a sum that goes on either way goes on."""
    for arm in ("(if (> y 0.0) y 0.0)", "(if (> y 0.0) (exp y) y)"):
        f = hyad.model(f"(fn [#^ (Vec n) x #^ (Arr Int n) at] (sum (map (fn [k] (let [y (get x k)] {arm})) at)))")
        g = hyad.grad(f, wrt=0)
        assert "idle" not in [step.name for step in hyad.explain(g).steps]


def test_two_reals_that_are_equal_are_no_reason_for_a_branch() -> None:
    """Distances of pairs by ``norm``, whose gradient is 0 where a distance is: the loop adds on, and can be vectors."""
    f = hyad.model(
        "(fn [#^ (Mat n 3) x] (ifold (fn [s i] (ifold (fn [s j] (+ s (/ 1.0 (norm (- (get x i) (get x j)))))) s i))"
        " 0.0 (len x)))"
    )
    g = hyad.grad(f)
    assert "idle" not in [step.name for step in hyad.explain(g).steps]
    assert additions_outside_of_branches(g) > 0
    x = np.random.default_rng(8).normal(size=(7, 3))
    assert hyad.check_grad(f, (x,))


# ------------------------------------------------------------------- sums that leave a loop before derivatives


ATTRACTED = """(fn [#^ (Mat n d) y]
  (sum (square (build [(len y) (len (get y 0))] (fn [i c] (sum (build (len y) (fn [j]
    (/ (- (get y j c) (get y i c)) WEIGHT)))))))))"""


@pytest.mark.some(6)
@pytest.mark.parametrize(
    "weight",
    [
        "(+ 1.0 (sq-norm (- (get y j) (get y i))))",
        "(exp (sq-norm (- (get y j) (get y i))))",
        "(+ 1.0 (sum (build d (fn [k] (abs (- (get y j k) (get y i k)))))))",
        "(norm [1.0 (sum (map (fn [a b] (* a b)) (get y j) (get y i)))])",
    ],
    ids=["distance", "kernel", "written-out", "product"],
)
def test_what_is_added_to_a_distance_is_added_once(weight: str) -> None:
    """The adjoint of a distance is summed over the columns before it is taken to the points: linear in the columns."""
    gradient = hyad.grad(hyad.model(ATTRACTED.replace("WEIGHT", weight)))
    program = gradient.optimised(gradient.specs())
    n, d = program.dims
    few, many = (cost(program, {n: 64.0, d: float(size)}).work for size in (64, 128))
    assert many < 2.1 * few
    y = np.random.default_rng(0).normal(size=(9, 5)) / 3
    made = hyad.compile(gradient, args=(y,))
    with without(["expand"]):
        plain = hyad.compile(hyad.grad(hyad.model(ATTRACTED.replace("WEIGHT", weight))), args=(y,))
        np.testing.assert_allclose(made(y), plain(y), rtol=1e-11, atol=1e-12)
    for shape in ((1, 5), (9, 1), (3, 0), (2, 8)):
        y = np.random.default_rng(1).normal(size=shape)
        np.testing.assert_allclose(made(y), plain(y), rtol=1e-11, atol=1e-12)


def test_a_distance_in_a_loop_over_time_is_not_remembered() -> None:
    """The states are: a matrix of distances for each step would take more room than they do."""
    text = """(fn [#^ (Mat n d) x #^ Int steps] (sum (square (ifold (fn [y k]
      (+ y (* 0.1 (build [(len y) (len (get y 0))] (fn [i c] (sum (build (len y) (fn [j]
        (/ (- (get y j c) (get y i c)) (+ 1 (sq-norm (- (get y j) (get y i))))))))))))) x steps))))"""
    source = hyad.compile(hyad.grad(hyad.model(text), wrt=0), args=(np.ones((9, 5)), 3)).source
    (room,) = re.findall(r"work: room for (.*) reals", source)
    assert "n*n*(steps" not in room and "n*d*(steps" in room


#: Cox's likelihood as it is read: who is at risk is asked in a branch, for each event alone, sizes are not declared.
AT_RISK = """(fn [eta time #^ (Arr Int n) event]
  (let [ll (ref 0.0)]
    (for [i (range n)]
      (when (= (get event i) 1)
        (let [risk (ref 0.0)]
          (for [j (range n)]
            (when (>= (get time j) (get time i))
              (set! risk (+ (deref risk) (exp (get eta j))))))
          (set! ll (+ (deref ll) (- (get eta i) (log (deref risk))))))))
    (deref ll)))"""


def test_calls_leave_a_loop_in_a_branch() -> None:
    """An exponential for each element, not for each pair; of those that are there, should there be fewer."""
    model = hyad.model(AT_RISK, namespace={})
    args = np.ones(3), np.ones(3), np.ones(3, int)
    value, grad = hyad.compile(model, args=args), hyad.compile(hyad.grad(model, wrt="eta"), args=args)
    for f in (value, grad):
        loops = [x.op for x in all_binds(f.program.body) if type(x.op) is Loop]
        nested = [x for loop in loops for x in all_binds(loop.body) if type(x.op) is Loop]
        inside = [y for x in nested for y in all_binds(x.op.body) if type(y.op) is Prim and y.op.name == "exp"]
        assert "expand" in [s.name for s in hyad.explain(model, args=args).steps] and len(inside) <= (
            f is value
        )  # as it checks
    rng = np.random.default_rng(7)
    for n in (0, 1, 2, 5, 9):
        eta, time, event = rng.normal(size=n), rng.uniform(size=n), rng.integers(0, 2, n)
        risk = np.array([np.exp(eta[time >= t]).sum() for t in time])
        assert value(eta, time, event) == pytest.approx(((eta - np.log(risk)) * (event == 1)).sum(), rel=1e-13)
        want = event - np.exp(eta) * np.array([(event / risk)[time <= t].sum() for t in time])
        np.testing.assert_allclose(grad(eta, time, event), want, rtol=1e-12, atol=1e-13)
    time, event = np.array([3.0, 2.0, 1.0]), np.array([1, 0, 0])
    for f in (value, grad):  # no element of the second and third is read
        np.testing.assert_allclose(f(np.array([0.5]), time, event), f(np.array([0.5]), time[:1], event[:1]))
        with pytest.raises(BoundsError, match="eta"):
            f(np.array([0.5]), time, np.array([1, 1, 0]))
        assert np.all(np.isfinite(f(np.full(3, 800.0), time, np.array([0, 0, 0]))))  # what overflows is not read


#: Conductivities between cells of a grid that do not change from step to step, as a newcomer writes them.
CONDUCTS = """(fn [#^ (Mat n m) u0 #^ (Mat n m) k #^ Int s]
  (let [u (ref (copy u0))]
    (for [t (range s)]
      (let [new (copy (deref u))]
        (for [i (range 1 (- n 1))  j (range 1 (- m 1))]
          (let [c (get (deref u) i j)
                between (fn [a b] COEFFICIENT)]
            (set-at! new i j (+ c (* 0.1 (+
              (* (between (get k i j) (get k (- i 1) j)) (- (get (deref u) (- i 1) j) c))
              (* (between (get k i j) (get k (+ i 1) j)) (- (get (deref u) (+ i 1) j) c))
              (* (between (get k i j) (get k i (- j 1))) (- (get (deref u) i (- j 1)) c))
              (* (between (get k i j) (get k i (+ j 1))) (- (get (deref u) i (+ j 1)) c))))))))
        (set! u new)))
    (sum (square (deref u)))))"""
HARMONIC = CONDUCTS.replace("COEFFICIENT", "(/ (* 2 a b) (+ a b))")

#: The same along one axis of three.
LAYERS = """(fn [#^ (Arr n m l) u0 #^ (Arr n m l) k #^ Int s]
  (let [u (ref (copy u0))]
    (for [t (range s)]
      (let [new (copy (deref u))]
        (for [i (range 1 n)  j (range m)  h (range l)]
          (set-at! new i j h (+ (* 0.5 (get (deref u) i j h))
            (* (/ (get k i j h) (+ (get k i j h) (get k (- i 1) j h))) (get (deref u) (- i 1) j h)))))
        (set! u new)))
    (sum (square (deref u)))))"""


def divisions(f: Any, loops: int) -> int:
    """How many divisions stand in so many loops or more."""

    def count(block: Any, depth: int) -> int:
        total = 0
        for x in block.binds:
            total += type(x.op) is Prim and x.op.name == "/" and depth >= loops
            total += sum(count(b, depth + (type(x.op) is Loop)) for b in blocks_of(x.op))
        return total

    return count(f.program.body, 0)


@pytest.mark.parametrize("text", [HARMONIC, LAYERS], ids=["grid", "layers"])
def test_quotients_of_a_nest_leave_the_loop_over_time(text: str) -> None:
    """They are computed once, before it, whatever is a place beside; values and gradients are the same to the bit."""
    model = hyad.model(text, namespace={})
    rank, rng = 2 + (text is LAYERS), np.random.default_rng(8)
    args = rng.normal(size=(5, 6, 4)[:rank]), rng.uniform(0.5, 2.0, (5, 6, 4)[:rank]), 3
    for f in (model, hyad.grad(model, wrt=("u0", "k"))):
        made, plain = (memoised.compile(f, args=args, without=off) for off in ((), "expand"))
        inside = divisions(made, rank + 1)
        quotients = {HARMONIC: 4, LAYERS: 1}[text]
        assert divisions(made, rank) - inside == quotients
        assert inside == (0 if f is model else quotients) < divisions(plain, rank + 1)
        for size in ((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3), (2, 5, 1), (3, 4, 2), (9, 7, 3)):
            for s in (0, 1, 2, 5):
                args = rng.normal(size=size[:rank]), rng.uniform(0.5, 2.0, size[:rank]), s
                one, other = (g(*args) if f is not model else (g(*args),) for g in (made, plain))
                assert [np.asarray(x).tobytes() for x in one] == [np.asarray(x).tobytes() for x in other]
    assert hyad.check_grad(model, args[:2] + (2,), wrt=("u0", "k"))


@pytest.mark.parametrize(
    "coefficient",
    ["(* a b)", "(/ (+ a b) 4)", "(/ 1 (+ (get k i 0) (get k 0 j)))", "(/ a (+ b (real t)))"],
    ids=["a product", "a quarter", "of a row and a column", "of the step"],
)
def test_a_table_is_made_only_of_what_is_costly_and_the_same(coefficient: str) -> None:
    """What takes no division is read no faster; and no array that is there has as many elements as a table would."""
    model = hyad.model(CONDUCTS.replace("COEFFICIENT", coefficient), namespace={})
    f = hyad.compile(model, args=(np.ones((4, 5)), np.ones((4, 5)), 2))
    first = [x for x in f.program.body.binds if type(x.op) is Loop and not x.op.accs]
    assert not [v for x in first for v in x.vars if isinstance(v.type, Arr) and v.type.rank > 1]


def test_parts_of_an_adjoint_share_a_softmax() -> None:
    """There once, and back once: not again for each of the three arguments."""
    f = hyad.model(
        """(fn [#^ (Arr n m k) h #^ Real J #^ Real beta #^ Int t]
          (let [p (ref (full [n m k] (/ 1.0 k)))]
            (for [it (range t)]
              (let [old (deref p)]
                (set! p (build [n m] (fn [i j]
                  (let [f (+ (get h i j) (* J (+ (get old (% (+ i 1) n) j) (get old i (% (+ j 1) m)))))]
                    (+ (* 0.5 (get old i j)) (* 0.5 (softmax (* beta f))))))))))
            (sum (square (deref p)))))""",
        namespace={},
    )
    g = hyad.grad(f, wrt=("h", "J", "beta"))
    assert sum(getattr(x.op, "name", None) == "exp" for x in all_binds(g.optimised(g.specs()).body)) == 2
