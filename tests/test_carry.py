"""Elements that one iteration stores and the next one reads, as single values: the same numbers to the last bit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import REAL, Loop, Prim, all_binds

#: A tridiagonal system in place: down, and up again.
THOMAS = """(defmodel thomas [#^ (Vec n) a #^ (Vec n) b #^ (Vec n) c #^ (Vec n) d]
  (let [b (+ b 0.0)
        x (+ d 0.0)]
    (for [i (range 1 n)]
      (let [w (/ (get a i) (get b (- i 1)))]
        (set-at! b i (- (get b i) (* w (get c (- i 1)))))
        (set-at! x i (- (get x i) (* w (get x (- i 1)))))))
    (for [i (range (- n 1) -1 -1)]
      (set-at! x i (/ (if (< (+ i 1) n) (- (get x i) (* (get c i) (get x (+ i 1)))) (get x i)) (get b i))))
    x))"""
#: Each element is what its neighbours are, of which two are new.
SEIDEL = """(defmodel seidel [#^ (Mat n m) u]
  (let [w (+ u 0.0)]
    (for [i (range 1 (- n 1))  j (range 1 (- m 1))]
      (set-at! w i j (* 0.25 (+ (get w (- i 1) j) (get w (+ i 1) j) (get w i (- j 1)) (get w i (+ j 1))))))
    w))"""


def steps_of(f, args) -> list[str]:
    return [step.name for step in hyad.explain(f, args=args).steps]


def with_and_without(f, args) -> tuple:
    return tuple(hyad.compile(f, args=args, without=w) for w in ((), "carry"))


def system(n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(n)
    return tuple(rng.uniform(low, high, n) for low, high in ((-1, 1), (3, 4), (-1, 1), (-1, 1)))


def test_a_recurrence_in_place_is_carried() -> None:
    f = hyad.model(THOMAS)
    total = hyad.model(THOMAS.replace("thomas", "total").replace("    x))", "    (sum (square x))))"))
    for g in (f, hyad.grad(total, wrt=("a", "b", "c", "d"))):
        assert "carry" in steps_of(g, system(5))
    made, plain = with_and_without(f, system(5))
    there, back = with_and_without(hyad.grad(total, wrt=("a", "b", "c", "d")), system(5))
    for n in (0, 1, 2, 3, 17):
        a, b, c, d = args = system(n)
        np.testing.assert_array_equal(made(*args), plain(*args))
        matrix = np.diag(b) + (np.diag(a[1:], -1) + np.diag(c[:-1], 1) if n else 0)
        x = np.linalg.solve(matrix, d)
        np.testing.assert_allclose(made(*args), x, rtol=1e-12, atol=1e-14)
        y = np.linalg.solve(matrix.T, 2 * x)
        zero = np.zeros(min(n, 1))
        wanted = (np.append(zero, -y[1:] * x[:-1]), -y * x, np.append(-y[:-1] * x[1:], zero), y)
        for one, other, exact in zip(there(*args), back(*args), wanted):
            np.testing.assert_allclose(one, exact, rtol=1e-11, atol=1e-13)
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def test_a_recurrence_waits_for_no_division_of_the_gradients_own() -> None:
    """What is divided by is known before: its reciprocal need not wait. The user's own divisions stay."""
    text = "(fn [#^ (Vec n) a] (ifold (fn [s i] (/ (+ s (sin s)) (get a i))) 1.0 n))"
    f = hyad.model(text)
    source = hyad.compile(hyad.grad(f), args=(np.ones(3),)).cfunction.source
    *_, back = source.split("for (")
    assert re.search(r"s_bar\*\(1\.0/", back), back
    v, h = np.array([1.3, 0.7, 2.9]), 1e-6
    slope = [(f(v + h * e) - f(v - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(hyad.grad(f)(v), slope, rtol=1e-8)


def test_neighbours_in_a_row_of_a_grid_are_carried() -> None:
    f = hyad.model(SEIDEL)
    assert "carry" in steps_of(f, (np.ones((4, 4)),))
    made, plain = with_and_without(f, (np.ones((4, 4)),))
    for n, m in ((0, 0), (1, 3), (2, 2), (3, 3), (5, 7)):
        u = np.random.default_rng(n + m).uniform(-1, 1, (n, m))
        w = u.copy()
        for i in range(1, n - 1):
            for j in range(1, m - 1):
                w[i, j] = 0.25 * (w[i - 1, j] + w[i + 1, j] + w[i, j - 1] + w[i, j + 1])
        np.testing.assert_array_equal(made(u), plain(u))
        np.testing.assert_allclose(made(u), w, rtol=1e-15, atol=1e-16)
    total = hyad.model(SEIDEL.replace("seidel", "total").replace("    w))", "    (sum (square w))))"))
    made, plain = with_and_without(hyad.grad(total), (np.ones((4, 4)),))
    u, h = np.random.default_rng(1).uniform(-1, 1, (5, 6)), 1e-6
    np.testing.assert_array_equal(made(u), plain(u))
    for at in ((1, 1), (2, 3), (0, 2), (4, 5), (3, 4)):
        e = np.zeros_like(u)
        e[at] = h
        assert made(u)[at] == pytest.approx((total(u + e) - total(u - e)) / (2 * h), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    "body",
    [
        "(set-at! w (+ i 2) (* 0.5 (get w i)))",  # of the iteration before the last one
        "(set-at! w (+ i 1) (* 0.5 (get v i)))",  # nothing that is read
        "(do (set-at! w (+ i 1) (* 0.5 (get w i))) (set-at! w (int (get v i)) 3.0))",  # perhaps the same element
        "(if (> (get v i) 1.0) (set-at! w (+ i 1) (* 0.5 (get w i))) (set-at! w i 1.0))",  # in a branch
        "(do (set-at! w (+ i 1) (* 0.5 (get w i))) (set-at! w (+ i 1) (get v i)))",  # stored once more
        "(set-at! w i (* 0.5 (get w (+ i 1))))",  # what comes later
        "(set-at! w 1 (* 0.5 (get w 1)))",  # one element
        "(do (set-at! w (+ i 1) (* 0.5 (get w i))) (set-at! w k 3.0))",  # perhaps the same element, for all the loop
        "(do (set-at! w (+ i 1) (* 0.5 (get w i))) (set-at! w (% (* i i) n) 3.0))",  # at no known distance
        "(do (set-at! w (+ i 1) (* 0.5 (get w i))) (when (> (get v i) 3.5) (set-at! w (+ i 1) 3.0)))",
    ],
)
def test_what_is_not_carried(body: str) -> None:
    text = f"(fn [#^ (Vec n) v #^ Int k] (let [w (+ v 0.0)] (for [i (range (- n 2))] {body}) w))"
    f, v = hyad.model(text), np.array([0.5, 3.0, 1.0, 4.0, 2.0, 5.0])
    assert "carry" not in steps_of(f, (v, 2))
    for k in range(6):
        np.testing.assert_array_equal(f(v, k), hyad.run(f, v, k))


@pytest.mark.parametrize(
    "body",
    [
        "(do (set-at! w (+ i 1) (+ (get w (+ i 1)) (sin (get w i)))) (set-at! w i 0.0))",  # another one is changed, too
        "(do (set-at! w i (* 2.0 (get w i))) (set-at! w (+ i 1) (sin (+ (get w i) (get w (+ i 1))))))",
        "(let [x (get w i)] (set-at! w (+ i 1) (* x (get w (+ i 1)))) (set-at! w (+ i 2) (+ x (get w (+ i 2)))))",
    ],
)
def test_several_changes_at_known_distances(body: str) -> None:
    text = f"(fn [#^ (Vec n) v] (let [w (+ v 0.0)] (for [i (range (- n 2))] {body}) w))"
    f = hyad.model(text)
    made, plain = with_and_without(f, (np.ones(5),))
    total = hyad.model(text.replace(" w))", " (sum (* w w))))"))
    g, h = with_and_without(hyad.grad(total), (np.ones(5),))
    for n in (2, 3, 6):
        v = np.random.default_rng(n).uniform(0.2, 1, n)
        np.testing.assert_array_equal(made(v), plain(v))
        np.testing.assert_allclose(made(v), hyad.run(f, v), rtol=1e-15)
        np.testing.assert_allclose(g(v), h(v), rtol=1e-14)
        slope = [(total(v + 1e-6 * e) - total(v - 1e-6 * e)) / 2e-6 for e in np.eye(n)]
        np.testing.assert_allclose(g(v), slope, rtol=1e-7, atol=1e-9)


LOOPS = {
    "residuals": (
        "(let [e (copy v)] (for [t (range 1 n)] (set-at! e t (- (get w t) (* 0.4 (get e (- t 1)))))) e)", 1,
    ),
    "backwards": (
        "(let [e (copy v)] (for [t (range (- n 2) -1 -1)] (set-at! e t (- (get w t) (* 0.4 (get e (+ t 1)))))) e)", 1,
    ),
    "two arrays": (
        "(let [e (copy v) g (copy w)] (for [t (range 1 n)]"
        " (set-at! e t (- (get w t) (* 0.4 (get e (- t 1)) (get g (- t 1)))))"
        " (set-at! g t (+ (get g t) (* 0.3 (get g (- t 1)))))) (+ e g))", 2,
    ),
    "a row of a table": (
        "(let [e (outer v w)] (for [i (range 1 n)] (for [j (range 1 n)]"
        " (set-at! e i j (+ (get e (- i 1) j) (* 0.5 (get e i (- j 1))))))) e)", 1,
    ),
    "two before": (
        "(let [e (copy v)] (for [t (range 2 n)] (set-at! e t (+ (get e (- t 1)) (get e (- t 2))))) e)", 1,
    ),
    "downwards": (
        "(let [e (outer v w)] (for [i (range 1 n)] (for [j (range n)] (set-at! e i j (sin (get e (- i 1) j))))) e)", 0,
    ),
    "two stores": (
        "(let [e (copy v)] (for [t (range 1 n)] (set-at! e (- t 1) (get w t)) (set-at! e t (get e (- t 1)))) e)", 0,
    ),
    "far": ("(let [e (copy v)] (for [t (range 2 n)] (set-at! e t (* 0.5 (get e (- t 2))))) e)", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_numbers_are_handed_on(name: str) -> None:
    text, count = LOOPS[name]
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w] {text})", namespace={})
    made, plain = (hyad.compile(f, target="python", without=x) for x in ((), "carry"))
    compiled = hyad.compile(f)
    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 3, 4, 9):
        v, w = rng.normal(size=(2, n))
        np.testing.assert_array_equal(made(v, w), plain(v, w))
        np.testing.assert_allclose(compiled(v, w), plain(v, w), rtol=1e-14)
    assert ("carry" in [step.name for step in hyad.explain(f, args=(v, w)).steps]) == (count > 0)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_the_gradient_of_a_moving_average(n: int) -> None:
    """Its tangents are three arrays in one workspace: each is handed on."""
    text = """(fn [phi theta #^ (Vec n) y]
      (let [e (zeros n)]
        (set-at! e 0 (get y 0))
        (for [t (range 1 n)]
          (set-at! e t (- (get y t) (* phi (get y (- t 1))) (* theta (get e (- t 1))))))
        (sum (** e 2))))"""
    f, y = hyad.model(text, namespace={}), np.sin(np.arange(1.0, n + 1))
    e, a, b = y.copy(), np.zeros(n), np.zeros(n)
    for t in range(1, n):
        e[t] = y[t] - 0.3 * y[t - 1] - 0.2 * e[t - 1]
        a[t] = -y[t - 1] - 0.2 * a[t - 1]
        b[t] = -e[t - 1] - 0.2 * b[t - 1]
    g = hyad.grad(f, wrt=("phi", "theta"))
    np.testing.assert_allclose(g(0.3, 0.2, y), (2 * (e * a).sum(), 2 * (e * b).sum()), rtol=1e-13, atol=1e-15)
    assert "[i] -" not in hyad.show(g, "c").partition("for (")[2].partition("}")[0]


#: The least cost of one word as another, with costs that letters look up.
WORDS = """(fn [cost #^ Real more a b]
  (let [n (len a)  m (len b)]
    (get (ifold (fn [row i]
            (let [out (zeros (+ m 1))]
              (set-at! out 0 (* (+ i 1) more))
              (for [j (range m)]
                (set-at! out (+ j 1) (min (+ (get row j) (get cost (get a i) (get b j))) (+ (get row (+ j 1)) more)
                                          (+ (get out j) more))))
              out))
          (* more (arange (+ m 1))) n) m)))"""


def test_what_an_iteration_looks_up_is_checked_there() -> None:
    """A check of what data say stays where it is; no first element is read before one of its place."""
    f = hyad.model(WORDS, namespace={})
    rng = np.random.default_rng(2)
    cost = rng.uniform(0, 2, (3, 3))
    a, b = rng.integers(0, 3, 5), rng.integers(0, 3, 7)
    assert "carry" in steps_of(f, (cost, 0.7, a, b))
    for g in (f, hyad.grad(f, wrt=("cost", "more"))):
        made, plain = with_and_without(g, (cost, 0.7, a, b))
        for n, m in ((5, 7), (0, 7), (5, 0), (1, 1)):
            assert oracle.mismatch(made(cost, 0.7, a[:n], b[:m]), plain(cost, 0.7, a[:n], b[:m]), 0.0) is None
        with pytest.raises(hyad.HyadError, match="outside"):
            made(cost, 0.7, a, np.append(b, 3))
    text = "(for [i (range (- n 2))] (set-at! w (+ k i 1) (* 2 (get w (+ k i)))))"
    chain = hyad.model(f"(fn [#^ (Vec n) v #^ Int k] (let [w (copy v)] {text} w))", namespace={})
    made, plain = with_and_without(chain, (np.ones(6), 1))
    assert "2.0*out[k + i]" in made.source  # where k is checked in each iteration
    np.testing.assert_array_equal(made(np.ones(6), 1), plain(np.ones(6), 1))
    for k in (-1, 2):
        with pytest.raises(hyad.HyadError, match="outside"):
            made(np.ones(6), k)


#: Tables of which each element is a smallest or largest of three: the order in which a user writes these is free.
THREE = ["up left corner", "left up corner", "left corner up", "corner up left", "up corner left"]


@pytest.mark.parametrize("order", THREE)
@pytest.mark.parametrize("pick", ["min", "max"])
def test_what_comes_from_the_iteration_before_is_compared_last(order: str, pick: str) -> None:
    """One comparison of an iteration waits for the one before; NaN, infinities and the values are as written."""
    places = {"up": "(get D (- i 1) j)", "left": "(get D i (- j 1))", "corner": "(get D (- i 1) (- j 1))"}
    f = hyad.model(
        f"""(fn [#^ (Mat n m) c] (let [D (copy c)]
          (for [i (range 1 n) j (range 1 m)]
            (set-at! D i j (+ (get D i j) ({pick} {" ".join(places[k] for k in order.split())}))))
          D))""",
        namespace={},
    )
    assert "carried-last" in [step.name for step in hyad.explain(f).steps] or order.endswith("left")
    made = hyad.compile(f)
    loop = next(x.op for x in all_binds(made.program.body) if type(x.op) is Loop and x.op.accs and REAL in
                [a.type for a in x.op.accs])  # type: ignore[attr-defined]  # fmt: skip
    compared = [x.op.args for x in loop.body.binds if type(x.op) is Prim and x.op.name == pick]
    (left,) = (a for a in loop.accs if a.type == REAL)
    assert [left in args for args in compared] == [False, True] and compared[-1][1] is left
    c = np.sin(np.arange(30.0)).reshape(5, 6)
    for k, odd in ((3, np.nan), (8, np.inf), (8, -np.inf), (14, np.nan)):
        for x in (c, np.where(np.arange(30).reshape(5, 6) == k, odd, c)):
            np.testing.assert_array_equal(made(x), hyad.run(f, x))
    assert hyad.check_grad(hyad.model("(fn [c] (sum (sin (f c))))", namespace={"f": f}), (c,))
