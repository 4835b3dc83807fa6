"""Recursion on known integers that is long, written out: a function of the program. How much is inlined until that
shows, values and both modes against Python's own recursion, what has to be inlined all the same."""

from __future__ import annotations

import math

import pytest

import hyad
import hyad.recursion
from hyad.core import functions_of
from hyad.specialise import Specialiser

#: No two calls are equal; no product is rounded, so that a C compiler may put it together with a sum.
SPLIT = "(defmodel f [n x] (if (= n 0) (sin x) (+ (f (- n 1) (* 0.5 x)) (f (- n 1) (+ x 1.0)))))"
#: What it gives hangs on an integer that has to be known.
PICK = "(defmodel f [n x] (if (= n 0) x (+ (get #(x 2.0) (% n 2)) (* (f (- n 1) (* 0.5 x)) (f (- n 1) (+ x 1.0))))))"


def split(n: int, x: float) -> tuple[float, float]:
    """``SPLIT`` and its derivative."""
    if n == 0:
        return math.sin(x), math.cos(x)
    (a, da), (b, db) = split(n - 1, 0.5 * x), split(n - 1, x + 1.0)
    return a + b, 0.5 * da + db


def pick(n: int, x: float) -> float:
    return x if n == 0 else (x, 2.0)[n % 2] + pick(n - 1, 0.5 * x) * pick(n - 1, x + 1.0)


def known(text: str, n: int, tmp_path):
    """The model of x that calls ``f`` with ``n``."""
    path = tmp_path / "models.hy"
    path.write_text(f"{text}\n(defmodel g [x] (f {n} x))")
    return hyad.load(path).g


def test_long_recursion_on_known_integers_is_a_function(tmp_path, monkeypatch) -> None:
    """It was inlined, 2^n times: nothing bounds that."""
    steps = []
    block = Specialiser.block
    monkeypatch.setattr(Specialiser, "block", lambda sp, *args: (steps.append(len(args[0].binds)), block(sp, *args))[1])
    n, x = 15, 0.3
    g = known(SPLIT, n, tmp_path)
    value, slope = split(n, x)
    assert hyad.compile(g, target="c")(x) == value
    assert sum(steps) < 2 * hyad.recursion.WALKED
    for operator in (hyad.grad, hyad.D):
        steps.clear()
        assert hyad.compile(operator(g), target="c")(x) == pytest.approx(slope, rel=1e-12)
        assert sum(steps) < 2 * hyad.recursion.WALKED
        assert "recursion" in hyad.explain(operator(g)).fired()
    assert functions_of(g.optimised(g.specs()).body)


def test_short_recursion_on_known_integers_is_inlined(tmp_path) -> None:
    g = known(SPLIT, 6, tmp_path)
    assert not functions_of(g.program().body) and "recursion" not in hyad.explain(g).fired()
    g = known(SPLIT, 11, tmp_path)
    assert functions_of(g.program().body)
    off = hyad.compile(g, target="c", without="recursion")
    assert "recursion" not in hyad.explain(g, without="recursion").fired()
    assert off(0.3) == hyad.compile(g, target="c")(0.3) == split(11, 0.3)[0]


@pytest.mark.parametrize("body", ["(sin (f (- n 1) x))", "(f (- n 1) (sin x))"])
def test_deep_recursion_on_known_integers_ends(body: str, tmp_path) -> None:
    """From 500 calls inside one another on it was said to have no end."""
    g = known(f"(defmodel f [n x] (if (= n 0) x {body}))", 3000, tmp_path)
    y, slope = 0.3, 1.0
    for _ in range(3000):
        y, slope = math.sin(y), slope * math.cos(y)
    assert hyad.compile(g, target="c")(0.3) == y
    for operator in (hyad.grad, hyad.D):
        assert hyad.compile(operator(g), target="c")(0.3) == pytest.approx(slope, rel=1e-11)


def test_integers_that_decide_what_is_there_are_known(tmp_path, monkeypatch) -> None:
    """What can be no function of the program is inlined all the same, up to a limit of its own; then it is run."""
    monkeypatch.setattr(hyad.recursion, "WALKED", 100)
    g = known(PICK, 5, tmp_path)
    assert hyad.compile(g, target="c")(0.3) == pytest.approx(pick(5, 0.3), rel=1e-14)
    monkeypatch.setattr(hyad.recursion, "FAR", 2)
    g = known(PICK, 6, tmp_path)
    with pytest.raises(hyad.NotCompiled, match=r"too long to be written out(?s:.)*subscripted by a literal"):
        g.program()
    assert g(0.3) == pytest.approx(pick(6, 0.3), rel=1e-14)


def test_calls_of_one_function_from_many_places_are_counted_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(hyad.recursion, "WALKED", 1000)
    path = tmp_path / "models.hy"
    calls = " ".join(f"(f 5 (* x {k}.5))" for k in range(8))
    path.write_text(f"{SPLIT}\n(defmodel once [x] (f 5 x))\n(defmodel g [x] (* {calls}))")
    models = hyad.load(path)
    assert not functions_of(models.once.program().body)
    assert functions_of(models.g.program().body)
