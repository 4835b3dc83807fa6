"""Tangents with many columns of which few are other than zero: sums that leave the others alone, judged by values that
do not change by a bit, and by the loops that come out."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad

RNG = np.random.default_rng(11)

#: Each row depends on one input and on the row ``up`` above it.
ROWS = """(fn [#^ (Vec {n}) p #^ (Arr Int m) k #^ (Arr Int m) up #^ (Mat c m) w]
  (let [rows (ifold (fn [done b]
                      (let [x (if (< (get k b) 0) [0.0 1.0] [(cos (get p (get k b))) (sin (get p (get k b)))])
                            a (get up b)]
                        (update done b (if (< a 0) x (map (fn [y x] (+ (* 0.5 y) (* x y))) (get done a) x)))))
                    (build [(len k) 2] (fn [b j] 0.25)) (len k))]
    """
#: Points in the plane, and numbers: sums of rows.
POINTS = (
    ROWS
    + """(map (fn [q] (* (get q 0) (get q 1)))
      (ifold (fn [sum b] (map (fn [s w] (map (fn [s x] (+ s (* (get w b) x))) s (get rows b))) sum w))
             (map (fn [w] [0.0 1.0]) w) (len k)))))"""
)
NUMBERS = ROWS + "(map (fn [w] (sin (ifold (fn [s b] (+ s (* (get w b) (get rows b 0)))) 0.0 (len k)))) w)))"


def jacobian(text: str, p: np.ndarray, k: np.ndarray, up: np.ndarray, w: np.ndarray) -> np.ndarray:
    """By complex steps of the same in NumPy."""
    steps = []
    for p in p + 1e-30j * np.eye(len(p)):
        rows = np.zeros((len(k), 2), complex)
        for b, (j, a) in enumerate(zip(k, up)):
            x = np.array([0, 1] if j < 0 else [np.cos(p[j]), np.sin(p[j])], complex)
            rows[b] = x if a < 0 else 0.5 * rows[a] + x * rows[a]
        q = [0, 1] + w @ rows
        steps.append((q[:, 0] * q[:, 1] if text == POINTS else np.sin(q[:, 0])).imag / 1e-30)
    return np.stack(steps, axis=1)


def tree(n: int, m: int, c: int, spread: bool = True) -> tuple:
    """``m`` rows in branches of three; every fifth row needs no input of its own."""
    k = np.array([-1 if b % 5 == 4 else (7 * b if spread else b // 3) % n for b in range(m)], int)
    up = np.array([-1 if b % 3 == 0 else b - 1 for b in range(m)], int)
    return RNG.normal(size=n), k, up, RNG.normal(size=(c, m))


def last(n: int) -> tuple:
    """The last columns alone."""
    return RNG.normal(size=n), np.array([n - 1, n - 2, n - 1]), np.array([-1, 0, -1]), RNG.normal(size=(4, 3))


ARGS = {
    "12 columns": tree(12, 7, 5),
    "26 columns": tree(26, 22, 9),
    "neighbours": tree(26, 45, 3, spread=False),
    "the last columns": last(26),
    "no rows": tree(26, 0, 2),
    "no points": tree(26, 4, 0),
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small Jacobians have all columns in one tangent, too."""
    monkeypatch.setattr("hyad.differentiate.jacobians.WRITTEN_OUT", 0)


def model_of(text: str, n: int) -> hyad.Model:
    return hyad.model(text.replace("{n}", str(n)), namespace={})


@pytest.mark.some(6)
@pytest.mark.parametrize("args", ARGS.values(), ids=list(ARGS))
@pytest.mark.parametrize("text", [POINTS, NUMBERS], ids=["points", "numbers"])
def test_values(text: str, args: tuple) -> None:
    """As by complex steps; and without the rules, to the last bit."""
    made = hyad.jacobian(model_of(text, len(args[0])), wrt="p")
    expected = jacobian(text, *args)
    np.testing.assert_allclose(made(*args), expected, rtol=1e-12, atol=1e-14)
    exact = hyad.compile(made, args=args, target="python")(*args)
    np.testing.assert_allclose(exact, expected, rtol=1e-12, atol=1e-14)
    plain = hyad.compile(made, args=args, target="python", without="columns")
    assert np.array_equal(plain(*args), exact)


@pytest.mark.parametrize("text", [POINTS, NUMBERS], ids=["points", "numbers"])
def test_few_columns_are_added(text: str) -> None:
    """Four columns at a time from the first that may be other than zero; all of them where that is switched off."""
    made, args = hyad.jacobian(model_of(text, 26), wrt="p"), ARGS["26 columns"]
    explained = hyad.explain(made, args=args)
    assert "columns" in explained.fired() and "only those columns" in str(explained)
    found = re.search(r"(HYAD_APART.*\n)?( *HYAD_LANES\n)?.*j < 4", hyad.show(made, "c", args=args))
    assert found and bool(found[1]) == (text == POINTS)  # rows of one array, of which a compiler sees nothing
    assert "j < 4" not in hyad.show(made, "c", args=args, without="columns")


@pytest.mark.parametrize(
    "text, n",
    [
        (NUMBERS.replace("(get p (get k b))", "(dot p p)"), 26),
        (NUMBERS, 8),
        (NUMBERS.replace("(+ s (* (get w b)", "(+ (* 0.5 s) (* (get w b)"), 26),
    ],
    ids=["every column", "few directions", "what fades"],
)
def test_left_alone(text: str, n: int) -> None:
    made, args = hyad.jacobian(model_of(text, n), wrt="p"), tree(n, 7, 5)
    assert "columns" not in hyad.explain(made, args=args).fired()


def test_it_is_named() -> None:
    assert "columns" in hyad.optimisations()
