"""Linear algebra by rules: derivatives of every order at all sizes, and what their programs do not do."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Prim, all_binds

#: Each of a matrix that is symmetric and positive, and what the gradient by it is, on paper.
MEASURES = {
    "logdet": ("(logdet a)", lambda a, y: np.linalg.inv(a).T),
    "det": ("(det a)", lambda a, y: np.linalg.det(a) * np.linalg.inv(a).T),
    "inverse": (
        "(dot y (@ (inv a) y))", lambda a, y: -np.outer(np.linalg.solve(a.T, y), np.linalg.solve(a, y)),
    ),
    "trace of the inverse": ("(trace (inv a))", lambda a, y: -(np.linalg.inv(a) @ np.linalg.inv(a)).T),
    "solve": ("(dot y (solve a y))", lambda a, y: -np.outer(np.linalg.solve(a.T, y), np.linalg.solve(a, y))),
    "solve a matrix": (
        "(dot y (@ (solve a (eye (len a))) y))",
        lambda a, y: -np.outer(np.linalg.solve(a.T, y), np.linalg.solve(a, y)),
    ),
    "cholesky's logdet": (
        "(* 2.0 (sum (log (diag (cholesky a)))))",
        lambda a, y: 2 * np.tril(np.linalg.inv(a)) - np.diag(np.diag(np.linalg.inv(a))),
    ),
    "cholesky's system": (
        "(let [x (solve-cholesky (cholesky a) y)] (dot x y))",
        lambda a, y: below(-np.outer(*2 * [np.linalg.solve(a, y)])),
    ),
}  # fmt: skip


def below(g: np.ndarray) -> np.ndarray:
    """The gradient by the lower triangle alone: what is above the diagonal is there as well."""
    return np.tril(g) + np.tril(g.T, -1)


def point(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    a = rng.normal(size=(n, n))
    return a @ a.T + n * np.eye(n), rng.normal(size=n)


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Mat n n) a #^ (Vec n) y] {text})", namespace={})


@pytest.mark.parametrize("name", MEASURES)
def test_gradients_at_all_sizes(name: str) -> None:
    """Below, at and above what is done four at a time."""
    text, wanted = MEASURES[name]
    g = hyad.compile(hyad.grad(model(text), wrt="a"))
    for n in (1, 2, 3, 4, 5, 8, 13, 32):
        np.testing.assert_allclose(g(*point(n)), wanted(*point(n)), rtol=1e-9, atol=1e-11)
    assert g(np.zeros((0, 0)), np.zeros(0)).shape == (0, 0)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", MEASURES)
def test_second_derivatives(name: str) -> None:
    """The gradient's own derivative along a direction, forwards and backwards, against differences of the gradient."""
    text, wanted = MEASURES[name]
    a, y = point(4)
    d = np.tril(np.random.default_rng(1).normal(size=(4, 4)))
    d = d + np.tril(d, -1).T if "cholesky" not in name else d
    h = 1e-5
    full = (lambda x: np.tril(x) + np.tril(x, -1).T) if "cholesky" in name else (lambda x: x)
    slope = (wanted(full(a + h * d), y) - wanted(full(a - h * d), y)) / (2 * h)
    g = hyad.grad(model(text), wrt="a")
    forwards = hyad.jvp(g, (a, y), (d, np.zeros(4)))
    np.testing.assert_allclose(forwards, slope, rtol=1e-5, atol=1e-7)
    weights = np.random.default_rng(2).normal(size=(4, 4))
    backwards, _ = hyad.vjp(g, (a, y), weights)
    assert np.sum(backwards * d) == pytest.approx(np.sum(weights * slope), rel=1e-5, abs=1e-7)


def test_the_inverse_is_made_once() -> None:
    """By `inv`, by its rule and by that of `logdet`."""
    f = model("(dot y (sum (inv a) 0))")
    g = hyad.grad(model("(+ (dot y (sum (inv a) 0)) (logdet a))"), wrt="a")
    one, both = (list(all_binds(m.optimised(m.specs(point(3))).body)) for m in (f, g))
    for name in ("abs", "/"):  # of the search for pivots; of the columns by their pivots, and of the rows
        counts = [sum(type(b.op) is Prim and b.op.name == name for b in binds) for binds in (one, both)]
        assert 0 < counts[1] == counts[0]


def test_kernels_are_computed_in_the_triangle_alone() -> None:
    """What `cholesky` does not read of a matrix that is made for it is not made, nor what has no adjoint."""
    text = """(fn [#^ Real s #^ (Vec n) x #^ (Vec n) y]
      (let [k (+ (build [(len x) (len x)] (fn [i j] (exp (* s (square (- (get x i) (get x j))))))) (eye (len x)))
            u (solve-lower (cholesky k) y)]
        (dot u u)))"""
    f = hyad.grad(hyad.model(text, namespace={}), wrt="s")
    n = 100
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=n), rng.normal(size=n)
    calls = list(hyad.cost(f, args=(-0.5, x, y)).columns.values())[-1].transcendental
    assert calls < 1.2 * n * n  # there and back
    k = np.exp(-0.5 * (x[:, None] - x) ** 2)
    a = np.linalg.solve(k + np.eye(n), y)
    slope = -a @ (k * (x[:, None] - x) ** 2) @ a
    assert hyad.compile(f)(-0.5, x, y) == pytest.approx(slope, rel=1e-10)


def test_rows_in_the_other_order_are_not_stored() -> None:
    """A matrix of which each element is read once, the last row first, is computed where it is read."""
    text = """(fn [#^ (Vec n) u #^ (Vec n) v]
      (let [n (len u)  m (build [n n] (fn [i j] (+ (* (get u i) (get v j)) (/ (get v i) (get u j)))))]
        (ifold (fn [w t]
            (let [i (- n (+ t 1))]
              (ifold (fn [w j] (update w j (- (* 0.5 (get w j)) (* (get w i) (get m i j))))) w n)))
          v n)))"""
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(4)
    u, v = rng.uniform(1, 2, 9), rng.normal(size=9)
    made, plain = (hyad.compile(f, without=w).cfunction.workspace for w in ((), "fuse"))
    assert not made and "n*n" in plain
    m, w = np.outer(u, v) + np.outer(v, 1 / u), v.copy()
    for i in range(8, -1, -1):
        for j in range(9):
            w[j] = 0.5 * w[j] - w[i] * m[i, j]
    np.testing.assert_allclose(hyad.compile(f)(u, v), w, rtol=1e-12)


def test_a_matrix_is_factored_once_for_all_rows() -> None:
    """Nothing in it can fail, as far as is known: it leaves the loop that does not change the matrix."""
    text = """(fn [#^ (Mat d d) s #^ (Mat n d) x]
      (sum (map (fn [row] (+ (dot row (solve s row)) (logdet s))) x)))"""
    f = hyad.model(text, namespace={})
    n, d = 500, 16
    s, x = point(d)[0], np.random.default_rng(5).normal(size=(n, d))
    for g in (f, hyad.grad(f, wrt="s")):
        work = list(hyad.cost(g, args=(s, x)).columns.values())[-1].work
        assert work < 15 * n * d**2  # not n d^3
        assert "return" not in hyad.compile(g).cfunction.source.partition("/* f")[2]
    y = np.linalg.solve(s, x.T).T
    assert hyad.compile(f)(s, x) == pytest.approx(np.sum(x * y) + n * np.linalg.slogdet(s)[1], rel=1e-12)
    wanted = n * np.linalg.inv(s) - y.T @ y
    np.testing.assert_allclose(hyad.compile(hyad.grad(f, wrt="s"))(s, x), wanted, rtol=1e-9, atol=1e-9)
    assert hyad.compile(f)(s, x[:0]) == 0.0


def test_an_index_between_two_ends_is_in_range_where_there_is_one() -> None:
    """The smaller of two is below each: in a loop there is a last element, before it there need not be."""
    clipped = "(max 0 (min k (- (len v) 1)))"
    looped = f"(fn [#^ (Vec n) v #^ Int k] (sum (map (fn [a] (* a (get v {clipped}))) v)))"
    f = hyad.compile(hyad.model(looped, namespace={}))
    assert f.cfunction.source.partition("/* f")[2].count("return") == 1  # of the sum
    v = np.array([1.0, 2.0, 4.0])
    assert [f(v, k) for k in (-5, 1, 2**62)] == [7.0, 14.0, 28.0] and f(v[:0], 3) == 0.0
    alone = hyad.compile(hyad.model(f"(fn [#^ (Vec n) v #^ Int k] (get v {clipped}))", namespace={}))
    assert alone(v, 7) == 4.0
    with pytest.raises(hyad.HyadError):
        alone(v[:0], 0)
    beyond = hyad.compile(hyad.model(looped.replace("- (len v) 1", "- (len v) 0"), namespace={}))
    with pytest.raises(hyad.HyadError):
        beyond(v, 3)


@pytest.mark.parametrize("rows", ["", "#^ (Mat 3 3)"])
def test_a_singular_matrix_has_a_determinant_of_zero(rows: str) -> None:
    """Zeros below a pivot of zero are no quotients 0/0; a NaN there stays one."""
    functions = [hyad.model(f"(fn [{rows} a] ({f} a))", namespace={}) for f in ("det", "logdet", "slogdet", "inv")]
    det, logdet, slogdet, inv = ((lambda a, f=f: (f(a), hyad.run(f, a))) for f in functions)
    singular = (
        np.ones((3, 3)),
        np.zeros((3, 3)),
        np.diag([1.0, 0.0, 2.0]),
        np.outer([1.0, 2.0, -4.0], [0.5, 1.0, 2.0]),
    )
    for a in singular:
        assert det(a) == (0.0, 0.0)
        assert logdet(a) == (-np.inf, -np.inf)
        assert slogdet(a) == ((0.0, -np.inf),) * 2
        assert not any(np.isfinite(x).all() for x in inv(a))
    rest = np.array([[0.0, 2.0, 3.0], [0.0, 4.0, 5.0], [np.nan, 1.0, 2.0]])
    assert np.isnan(det(rest)).all() and np.isnan(logdet(rest)).all()
    exchanged = np.array([[0.0, 2.0, 3.0], [0.0, 4.0, 5.0], [0.5, 1.0, 2.0]])
    np.testing.assert_allclose(det(exchanged), np.linalg.det(exchanged), rtol=1e-14)


def test_no_product_of_matrices_is_made_for_a_vector() -> None:
    """Neither from the right nor from the left, however the factors are grouped; but outside of a loop, once, for the
    products in it."""
    head = "(fn [#^ (Mat n m) a #^ (Mat m n) b #^ (Mat n n) c #^ (Vec n) x #^ (Vec m) y] "
    rng = np.random.default_rng(2)
    for n, m in ((4, 3), (1, 2), (3, 5)):
        a, b, c = rng.normal(size=(n, m)), rng.normal(size=(m, n)), rng.normal(size=(n, n))
        x, y = rng.normal(size=n), rng.normal(size=m)
        texts = {
            "(@ a b x)": a @ b @ x,
            "(@ (@ a b c) x)": a @ b @ c @ x,
            "(let [p (@ a (@ b a))] (@ p y))": a @ b @ a @ y,
            "(@ x a b c a y)": x @ a @ b @ c @ a @ y,
            "(@ (@ (transpose b) (transpose a)) x)": b.T @ a.T @ x,
            "(@ (inv (+ c (* 9 (eye (len c))))) a y)": np.linalg.solve(c + 9 * np.eye(n), a @ y),
            "(sum (ifold (fn [s k] (@ (@ a b) s)) x 3))": np.sum(np.linalg.matrix_power(a @ b, 3) @ x),
        }
        for text, wanted in texts.items():
            f = hyad.model(f"{head} {text})", namespace={})
            np.testing.assert_allclose(f(a, b, c, x, y), wanted, rtol=1e-12, atol=1e-12)
            source = hyad.compile(f).source
            assert ("n*n" in source.partition("{")[2]) == ("ifold" in text or "inv" in text), text
    assert hyad.check_grad(hyad.model(f"{head} (sin (@ x a b c a y)))", namespace={}), (a, b, c, x, y))


#: Of two rows: what is taken, and what NumPy has for it.
OF_TWO = {
    "inv": ("(inv {})", lambda m, b: np.linalg.inv(m)),
    "solve": ("(solve {} b)", np.linalg.solve),
    "solve of a matrix": (
        "(solve {} (outer b [1.0 b1 2.0]))",
        lambda m, b: np.linalg.solve(m, np.outer(b, [1, b[1], 2])),
    ),
    "det": ("(det {})", lambda m, b: np.linalg.det(m)),
    "logdet": ("(logdet {})", lambda m, b: np.linalg.slogdet(m)[1]),
    "a product with the inverse": ("(@ b (inv {}) b)", lambda m, b: b @ np.linalg.inv(m) @ b),
    "a quadratic form": ("(dot b (solve {} b))", lambda m, b: b @ np.linalg.solve(m, b)),
}
MADE = {"any": "a", "symmetric": "(+ (@ a (transpose a)) (* 0.1 (eye 2)))"}


def of_two(name: str, made: str) -> hyad.Model:
    text = OF_TWO[name][0].format(MADE[made]).replace("b1", "(get b 1)")
    return hyad.model(f"(fn [#^ (Mat 2 2) a #^ (Vec 2) b] {text})", namespace={})


def matrix(made: str, a: np.ndarray) -> np.ndarray:
    return a if made == "any" else a @ a.T + 0.1 * np.eye(2)


@pytest.mark.some(6)
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", OF_TWO)
def test_two_rows_by_the_adjugate(name: str, made: str) -> None:
    rng = np.random.default_rng(3)
    f = of_two(name, made)
    total = f if np.ndim(OF_TWO[name][1](np.eye(2), np.ones(2))) == 0 else None
    for _ in range(5):
        a, b = rng.normal(size=(2, 2)), rng.normal(size=2)
        expected = OF_TWO[name][1](matrix(made, a), b)
        np.testing.assert_allclose(memoised.compile(f)(a, b), expected, rtol=1e-10)
        np.testing.assert_allclose(hyad.run(f, a, b), expected, rtol=1e-10)
    loss = total or hyad.model("(fn [#^ (Mat 2 2) a #^ (Vec 2) b] (sum (sin (f a b))))", namespace={"f": f})
    hyad.check_grad(loss, (a, b))
    second = memoised.compile(hyad.hessian(loss, wrt="a"))(a, b)
    h = 1e-5
    for i, j in np.ndindex(2, 2):
        step = np.zeros((2, 2))
        step[i, j] = h
        ends = [memoised.compile(hyad.grad(loss, wrt="a"))(a + s * step, b) for s in (1, -1)]
        np.testing.assert_allclose(second[i, j], (ends[0] - ends[1]) / (2 * h), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("made", MADE)
def test_two_rows_take_one_division(made: str) -> None:
    """Where the determinant is well within the range of numbers; else they are taken apart."""
    f = hyad.model(
        f"(fn [#^ (Mat 2 2) a #^ (Vec 2) b] #((inv {MADE[made]}) (det {MADE[made]}) (solve {MADE[made]} b)))"
    )
    body = f.optimised(f.specs()).body
    assert sum(type(x.op) is Prim and x.op.name == "/" for x in body.binds) == 1


@pytest.mark.parametrize("name", [name for name in OF_TWO if name != "det"])
@pytest.mark.parametrize("scale", [1e-160, 1e-150, 1e150, 1e160])
def test_two_rows_of_any_size(name: str, scale: float) -> None:
    """The determinant is infinite, or 0 to rounding, and the inverse is not."""
    a, b = scale * np.array([[2.0, 1.0], [-3.0, 1.5]]), np.array([1.0, -0.5])
    np.testing.assert_allclose(memoised.compile(of_two(name, "any"))(a, b), OF_TWO[name][1](a, b), rtol=1e-12)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_two_rows_are_as_exact_as_by_elimination(condition: float) -> None:
    """The error of an inverse is at most some units of the condition number."""
    rng = np.random.default_rng(5)
    f = hyad.compile(of_two("inv", "any"))
    for _ in range(200):
        (u, _), (v, _) = (np.linalg.qr(rng.normal(size=(2, 2))) for _ in range(2))
        a = u @ np.diag([1.0, 1 / condition]) @ v
        exact = mpmath.matrix(a.tolist()) ** -1
        wrong = np.abs(f(a, np.ones(2)) - np.array(exact.tolist(), dtype=float)).max() / condition
        assert wrong <= 8 * 2.0**-52 * condition
