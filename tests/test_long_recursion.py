"""Recursion on known integers that is long, written out: a function of the program. How much is inlined until that
shows, values and both modes against Python's own recursion, what has to be inlined all the same; what calls itself
last."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hyad
import hyad.frontend.recursion
from hyad.core import Apply, While, all_binds, functions_of, size
from hyad.frontend.specialise import Specialiser

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


@pytest.mark.long
def test_long_recursion_on_known_integers_is_a_function(tmp_path, monkeypatch) -> None:
    """It was inlined, 2^n times: nothing bounds that."""
    steps = []
    block = Specialiser.block
    monkeypatch.setattr(Specialiser, "block", lambda sp, *args: (steps.append(len(args[0].binds)), block(sp, *args))[1])
    n, x = 15, 0.3
    g = known(SPLIT, n, tmp_path)
    value, slope = split(n, x)
    assert hyad.compile(g, target="c")(x) == value
    assert sum(steps) < 2 * hyad.frontend.recursion.WALKED
    for operator in (hyad.grad, hyad.D):
        steps.clear()
        assert hyad.compile(operator(g), target="c")(x) == pytest.approx(slope, rel=1e-12)
        assert sum(steps) < 2 * hyad.frontend.recursion.WALKED
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
    monkeypatch.setattr(hyad.frontend.recursion, "WALKED", 100)
    g = known(PICK, 5, tmp_path)
    assert hyad.compile(g, target="c")(0.3) == pytest.approx(pick(5, 0.3), rel=1e-14)
    monkeypatch.setattr(hyad.frontend.recursion, "FAR", 2)
    g = known(PICK, 6, tmp_path)
    with pytest.raises(hyad.NotCompiled, match=r"too long to be written out(?s:.)*subscripted by a literal"):
        g.program()
    assert g(0.3) == pytest.approx(pick(6, 0.3), rel=1e-14)


def test_calls_of_one_function_from_many_places_are_counted_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(hyad.frontend.recursion, "WALKED", 1000)
    path = tmp_path / "models.hy"
    calls = " ".join(f"(f 5 (* x {k}.5))" for k in range(8))
    path.write_text(f"{SPLIT}\n(defmodel once [x] (f 5 x))\n(defmodel g [x] (* {calls}))")
    models = hyad.load(path)
    assert not functions_of(models.once.program().body)
    assert functions_of(models.g.program().body)


LAST = {
    "waves": (
        """(defmodel waves [#^ (Vec n) u0  #^ (Vec n) v0  c]
             (loop [k 0  u u0  v v0]
               (if (= k 40) (sum (* u u))
                 (let [m (len u)
                       a (build m (fn [i] (* c (- (+ (if (= i 0) 0.0 (get u (- i 1)))
                                                     (if (= i (- m 1)) 0.0 (get u (+ i 1))))
                                                  (* 2.0 (get u i))))))
                       w (+ v (* 0.1 a))]
                   (recur (+ k 1) (+ u (* 0.1 w)) w)))))""",
        ([0.1, 0.5, 0.7, 0.2], [0.3, 0.1, -0.2, 0.4], 0.7),
    ),
    "walks": (  # PageRank
        """(defmodel walks [#^ (Mat n n) a  d]
             (loop [k 0  r (build (len a) (fn [i] (/ 1.0 (len a))))]
               (if (= k 50) (sum (* r r))
                 (recur (+ k 1) (build (len a) (fn [i] (+ (/ (- 1.0 d) (len a)) (* d (sum (* (get a i) r))))))))))""",
        ([[0.1, 0.4, 0.5], [0.6, 0.2, 0.1], [0.3, 0.4, 0.4]], 0.85),
    ),
    "descent": (
        """(defmodel descent [x]
             (loop [k 60  x x]
               (if (= k 0) x (recur (- k 1) (- x (* 0.1 ((grad (fn [t] (+ (* t t) (cos t)))) x)))))))""",
        (1.3,),
    ),
    "pairs": (
        """(defmodel pairs [x y]
             (loop [k 0  s #(x y)]
               (if (= k 90) (get s 0) (recur (+ k 1) (let [#(a b) s] #(b (+ (* 0.5 a) (* 0.6 (sin b)))))))))""",
        (0.3, 0.4),
    ),
    "steps": (
        """(defmodel step [x k] (if (= k 0) x (step (+ (* 0.9 x) (* 0.1 (sin (* x (cos x))))) (- k 1))))
           (defmodel steps [x] (step x 100))""",
        (0.2,),
    ),
    # a state that a function has filled in place
    "filled": (
        """(defmodel smoothed [#^ (Vec n) v w]
             (let [x (zeros n)]
               (set-at! x 0 (get v 0))
               (for [i (range 1 n)] (set-at! x i (+ (* w (get x (- i 1))) (* (- 1.0 w) (get v i)))))
               x))
           (defmodel filled [#^ (Vec n) v w]
             (sum (square (loop [k 0  v v] (if (= k 30) v (recur (+ k 1) (smoothed (* 1.01 v) w)))))))""",
        [[0.3, 0.8, -0.4, 1.1], 0.2],
    ),
}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", LAST)
def test_what_calls_itself_last_is_a_loop_where_it_is_long(name: str, tmp_path) -> None:
    """It was written out: the gradient of the first of these was 3,343 lines of C."""
    text, args = LAST[name]
    path = tmp_path / "models.hy"
    path.write_text(text)
    f = getattr(hyad.load(path), name)
    args = [np.array(a) if isinstance(a, list) else a for a in args]
    for g in (f, hyad.grad(f)):
        got, run = hyad.compile(g, target="c")(*args), hyad.run(g, *args)
        for x, y in zip(*(z if isinstance(z, tuple) else (z,) for z in (got, run))):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-14)
        assert "recursion" in hyad.explain(g, args=args).fired()
        program = g.optimised(g.specs(args))
        assert not functions_of(program.body) and size(program.body) < 250
    hyad.check_grad(f, tuple(args))


@pytest.mark.some(6)
@pytest.mark.parametrize(
    "text",
    [
        # matrices that get smaller: each of a size that is known
        """(loop [k 40  v (build [2 41] (fn [j i] (* x (+ i 1))))]
             (if (= k 0) (get v 0 0)
               (recur (- k 1)
                      (build [2 k] (fn [j i]
                        (+ (* 0.5 (get v j i)) (* 0.49 (sin (get v j (+ i 1)))) (* 0.01 (cos x))))))))""",
        # an integer that says which part of a tuple
        """(loop [k 0  s x]
             (if (= k 60) s (recur (+ k 1) (+ (* 0.9 s) (* 0.1 (sin (* s (+ s (get #(x 2.0 1.0) (% k 3)))))))))) """,
        # that is short
        "(loop [k 0  s x] (if (= k 8) s (recur (+ k 1) (+ (* 0.9 s) (* 0.1 (sin (* s s)))))))",
    ],
    ids=["shapes", "parts", "short"],
)
def test_what_calls_itself_last_is_written_out_where_it_has_to_be(text: str, tmp_path) -> None:
    path = tmp_path / "models.hy"
    path.write_text(f"(defmodel f [x] {text})")
    f = hyad.load(path).f
    assert not any(type(b.op) in (While, Apply) for b in all_binds(f.program().body))
    assert hyad.compile(f, target="c")(0.3) == pytest.approx(hyad.run(f, 0.3), rel=1e-14)
    assert hyad.compile(hyad.grad(f), target="c")(0.3) == pytest.approx(hyad.run(hyad.D(f), 0.3), rel=1e-11)
