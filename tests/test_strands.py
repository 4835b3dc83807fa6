"""Sums of differentiation's own, in four strands: which are, and what they give."""

from __future__ import annotations

import numpy as np
import pytest

import hyad

RNG = np.random.default_rng(7)
X, Y, A = RNG.normal(size=23), RNG.normal(size=23), RNG.normal(size=(23, 5))

#: What is differentiated by p, and whether the adjoints' sum is a vector's; by hand, the gradient.
SUMS = {
    "a factor": ("(sum (map (fn [u v] (* p u v)) x y))", True, lambda p, x, y, a: x @ y),
    "behind a root": (
        "(sum (map (fn [u v] (sqrt (+ 1.0 (square (* p u v))))) x y))", True,
        lambda p, x, y, a: np.sum(p * (x * y) ** 2 / np.sqrt(1 + (p * x * y) ** 2)),
    ),
    "the larger": (
        "(sum (map (fn [u v] (max (* p u) v)) x y))", True, lambda p, x, y, a: np.sum(np.where(p * x >= y, x, 0.0))
    ),
    "behind a call": (
        "(sum (map (fn [u v] (sin (* p u v))) x y))", False, lambda p, x, y, a: x * y @ np.cos(p * x * y)
    ),
    "down a column": (
        "(sum (build (len a) (fn [i] (square (* p (get a i 2))))))", False,
        lambda p, x, y, a: 2 * p * np.sum(a[:, 2] ** 2),
    ),
    "with its place": (
        "(sum (build (len x) (fn [i] (* p (real i) (get x i)))))", False, lambda p, x, y, a: np.arange(len(x)) @ x
    ),
    "of ten": ("(sum (build 10 (fn [i] (square (* p (get x i))))))", False, lambda p, x, y, a: 2 * p * x[:10] @ x[:10]),
}  # fmt: skip


def strands(f: hyad.Model, *args: object) -> bool:
    return any(step.name == "strands" for step in hyad.explain(f, args=args).steps)


@pytest.mark.parametrize("name", SUMS)
def test_the_sum_of_an_adjoint(name: str) -> None:
    text, wanted, by_hand = SUMS[name]
    f = hyad.model(f"(fn [#^ Real p #^ (Vec n) x #^ (Vec n) y #^ (Mat n 5) a] {text})", namespace={})
    g = hyad.grad(f, wrt="p")
    args = (0.7, X, Y, A)
    assert strands(g, *args) == wanted
    for target in ("c", "python"):
        made = hyad.compile(g, args=args, target=target)
        for n in (23, 24, 3, 0):
            if name != "of ten" or n > 9:
                part = (0.7, X[:n], Y[:n], A[:n])
                assert made(*part) == pytest.approx(by_hand(*part), rel=1e-12, abs=1e-14)


def test_a_user_s_sum_keeps_its_order() -> None:
    """To the last bit; and so does the value beside a gradient whose own sum is in strands."""
    f = hyad.model("(fn [#^ Real p #^ (Vec n) x #^ (Vec n) y] (sum (map (fn [u v] (* p u v)) x y)))", namespace={})
    total = 0.0
    for u, v in zip(X, Y):
        total += 0.7 * u * v
    assert not strands(f, 0.7, X, Y) and hyad.compile(f)(0.7, X, Y) == total
    both = hyad.value_and_grad(f, wrt="p")
    assert hyad.compile(both)(0.7, X, Y)[0] == total


def test_sums_of_rows_are_in_strands_side_by_side() -> None:
    """The adjoint of attention's queries: four rows' sums at a time, each in four strands, which the C compiler is told
    to be a vector."""
    text = "(fn [#^ (Mat n d) q #^ (Mat m d) k] (sum (square (softmax (@ q (transpose k)) 1))))"
    f = hyad.model(text, namespace={})
    rng = np.random.default_rng(3)
    for n, m, d in ((3, 5, 2), (9, 17, 4), (5, 8, 1)):
        q, k = rng.normal(size=(n, d)), rng.normal(size=(m, d))
        p = np.exp(q @ k.T)
        p /= p.sum(1)[:, None]
        by_scores = 2 * p * (p - (p * p).sum(1)[:, None])
        for found, wanted in zip(hyad.grad(f)(q, k), (by_scores @ k, by_scores.T @ q)):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    _, *strands = hyad.show(hyad.grad(f), "c").split("HYAD_LANES\n")
    inner = [x.partition("}")[0] for x in strands]
    assert any("lane < 4" in x and x.count("[lane] +=") == 4 for x in inner), inner


#: Loops that add up and change arrays, by p and x, and whether the sums are a vector's.
CHANGES = {
    "rows of heat": (
        """(sum (square (build [6 (len x)] (fn [i j]
             (if (or (= i 0) (= i 5)) (get b i j)
                 (+ (get b i j) (* p (- (get b (- i 1) j) (get b (+ i 1) j)))))))))""", "b", True,
    ),
    "softmax, divided": ("(let [e (exp (* p x))] (dot (/ e (sum e)) (* p y)))", "x", True),
    "each of the one before": (
        "(sum (ifold (fn [u j] (update u (+ j 1) (* p (get u j) (get y j)))) x (- (len x) 1)))", "x", False,
    ),
    "half a row further": (
        "(let [h (// (len x) 2)] (sum (build h (fn [i] (* p (get x i) (get x (+ i h)))))))", "x", True,  # overlaps
    ),
    "half a row of a matrix further": (
        "(let [h (// (len x) 2)] (sum (build h (fn [i] (* p (get b 2 i) (get b 2 (+ i h)))))))", "b", True,
    ),
    "two rows": ("(sum (build (len x) (fn [i] (* p (get b 1 i) (get b 4 i)))))", "b", True),
    "rows that may be one": (
        "(let [r (// (len a) 5)] (sum (build (len x) (fn [i] (* p (get b r i) (get b (- 4 r) i))))))", "b", False,
    ),
    "into one place": (
        "(get (ifold (fn [u j] (update u 0 (* p (get y (- (len x) j 1))))) x (len x)) 0)", "x", False
    ),
    "down a column": (
        "(let [s (ifold (fn [u i] (update u i 2 (* p (get a i 2) (get a i 1)))) a (len a))] (sum (square s)))",
        "a", False,
    ),
}  # fmt: skip


@pytest.mark.some(10)
@pytest.mark.parametrize("name", CHANGES)
def test_sums_of_a_loop_that_changes_arrays(name: str) -> None:
    """The arrays to the last bit, the sums up to rounding, as without strands; and by finite differences."""
    text, other, wanted = CHANGES[name]
    f = hyad.model(f"(fn [#^ Real p #^ (Vec n) x #^ (Vec n) y #^ (Mat n 5) a #^ (Mat 6 n) b] {text})", namespace={})
    g, b = hyad.grad(f, wrt=("p", other)), RNG.normal(size=(6, 23))
    assert strands(g, 0.7, X, Y, A, b) == wanted
    made = [
        hyad.compile(g, args=(0.7, X, Y, A, b), target=t, without=w) for t in ("c", "python") for w in ((), "strands")
    ]
    for n in (23, 21, 20, 4, 3, 1):
        args = (0.7, X[:n], Y[:n], A[:n], b[:, :n].copy())
        assert hyad.check_grad(f, args, wrt=("p", other))
        results = [h(*args) for h in made]
        for by_p, by_other in results[1:]:
            assert by_p == pytest.approx(results[0][0], rel=1e-12, abs=1e-14)
            np.testing.assert_allclose(by_other, results[0][1], rtol=1e-13, atol=1e-15)
