"""Iterations that take turns (``hyad/passes/periods.py``), and what is known of rests and quotients of indices."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import If, Loop, Prim, all_binds

ROTATED = """(fn [#^ (Mat t d) x #^ Real base]
  (build t (fn [p]
    (build d (fn [k]
      (let [h (// k 2) a (/ (real p) (** base (/ (* 2.0 (real h)) (real d))))]
        (if (= (% k 2) 0)
          (- (* (cos a) (get x p k)) (* (sin a) (get x p (+ k 1))))
          (+ (* (sin a) (get x p (- k 1))) (* (cos a) (get x p k))))))))))"""

#: Of a vector ``v`` and a number ``r``.
PROGRAMS = {
    "even and odd": "(build n (fn [i] (if (= (% i 2) 0) (* r (get v i)) (sin (get v i)))))",
    "neighbours": "(build n (fn [i] (if (= (% i 2) 1) (- (get v i) (get v (- i 1))) (* r (get v i)))))",
    "from one on": "(build (- n 1) (fn [i] (if (= (% (+ i 1) 2) 0) (* (get v i) (get v (+ i 1))) (cos (get v i)))))",
    "three": """(build n (fn [i] (cond (= (% i 3) 0) (exp (* r (get v i))) (= (% i 3) 1) (* 2.0 (get v i))
                                       True (get v (- i 2)))))""",
    "four": "(build n (fn [i] (if (< (% i 4) 2) (* (get v i) (sin (* r (real (// i 4))))) (get v (- i 2)))))",
    "a sum": "(full 1 (ifold (fn [s i] (if (= (% i 2) 0) (+ s (exp (get v i))) (* s (cos (get v i))))) r n))",
    "both": """(let [x (copy v)]
      (for [i (range n)] (when (= (% i 2) 0) (set-at! x i (* r (get x (max 0 (- i 1)))))))
      (for [i (range n)] (when (= (% i 2) 1) (set-at! x i (+ (get x i) (* 0.5 (get x (- i 1)))))))
      x)""",
    "shared": "(build n (fn [i] (* (get v i) (exp (sin (* r (real (// i 2))))))))",
    "rows": "(map sum (build [n 3] (fn [i j] (if (= (% (+ i j) 2) 0) (* r (get v i)) (exp (get v i))))))",
}


@cache
def model(name: str) -> hyad.Model:
    """The same for two numbers: inside another loop."""
    return hyad.model(f"(fn [#^ (Vec n) v #^ (Vec m) rs] (map (fn [r] {PROGRAMS[name]}) rs))")


@cache
def loss(name: str) -> hyad.Model:
    rows = f"(map (fn [r] (sum (sin {PROGRAMS[name]}))) [r (* 2.0 r) (- r 0.3)])"
    return hyad.model(f"(fn [#^ (Vec n) v #^ Real r] (sum {rows}))")


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_to_the_last_bit(name: str) -> None:
    """In Python, where nothing contracts a product and a sum."""
    here, plain = memoised.compile(model(name), "python"), memoised.compile(model(name), "python", without="periods")
    assert name == "rows" or "periods" in hyad.explain(model(name)).fired()
    for n in (0, 1, 2, 3, 4, 5, 11, 12):
        v = np.random.default_rng(n).uniform(-1, 1, n)
        if name == "from one on" and n == 0:
            continue
        rs = np.array([0.7, -0.4])
        got, wanted = here(v, rs), plain(v, rs)
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_allclose(got, hyad.run(model(name), v, rs), rtol=1e-14)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    """In C, against differences and the same without."""
    f, g = loss(name), hyad.grad(loss(name), wrt=(0, 1))
    here, plain = memoised.compile(g), memoised.compile(g, without="periods")
    for n in (1, 2, 3, 6, 7, 9):
        v = np.random.default_rng(n).uniform(0.2, 1, n)
        (bar, slope), (wanted, other) = here(v, 0.7), plain(v, 0.7)
        np.testing.assert_allclose(bar, wanted, rtol=1e-12, atol=1e-14)
        assert slope == pytest.approx(other, rel=1e-12, abs=1e-14)
        h = 1e-6
        assert slope == pytest.approx((f(v, 0.7 + h) - f(v, 0.7 - h)) / (2 * h), rel=1e-6, abs=1e-8)


def test_one_angle_for_two_columns() -> None:
    """A sine and a cosine for each pair, and no branch in the loop over pairs; a last column without a partner is the
    error that it was."""
    f = hyad.model(ROTATED)
    program = f.optimised(f.specs((np.ones((3, 4)), 2.0)))
    binds = list(all_binds(program.body))
    assert sum(type(x.op) is Prim and x.op.name in ("sin", "cos") for x in binds) == 4  # two for a last column
    assert sum(type(x.op) is If for x in binds) == 1
    x, base = np.random.default_rng(0).normal(size=(5, 6)), 50.0
    angle = np.arange(5)[:, None] / base ** (2 * np.arange(3) / 6)
    turned = (x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    wanted = np.stack([turned.real, turned.imag], 2).reshape(5, 6)
    np.testing.assert_allclose(memoised.compile(f)(x, base), wanted, rtol=1e-13)
    with pytest.raises(hyad.BoundsError, match="is outside axis 1"):
        memoised.compile(f)(x[:, :5].copy(), base)
    g = hyad.grad(hyad.model(f"(fn [#^ (Mat t d) x #^ Real base] (sum (square (get ({ROTATED} x base) 1))))"), wrt=1)
    assert memoised.compile(g)(x, base) == pytest.approx(0, abs=1e-13)  # a rotation keeps lengths


def test_colours_of_a_grid() -> None:
    """Red points, then black ones, in place: no rest is taken within a row."""
    f = hyad.model("""(fn [#^ (Mat n n) u0 #^ Int sweeps]
      (let [u (copy u0)]
        (for [s (range sweeps)  c (range 2)  i (range 1 (- n 1))  j (range 1 (- n 1))]
          (when (= (% (+ i j) 2) c)
            (set-at! u i j (* 0.25 (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))))))
        u))""")
    for n in (2, 3, 6, 9):
        u = np.random.default_rng(n).normal(size=(n, n))
        wanted = u.copy()
        i, j = np.indices((n, n))
        inside = (i > 0) & (j > 0) & (i < n - 1) & (j < n - 1)
        for sweep in range(6):
            means = (
                np.roll(wanted, 1, 0) + np.roll(wanted, -1, 0) + np.roll(wanted, 1, 1) + np.roll(wanted, -1, 1)
            ) / 4
            wanted = np.where(inside & ((i + j) % 2 == sweep % 2), means, wanted)
        np.testing.assert_allclose(memoised.compile(f)(u, 3), wanted, rtol=1e-13)


def test_threads_share_the_elements_of_an_array() -> None:
    f = hyad.model("(fn [#^ (Vec n) v] (build n (fn [i] (if (= (% i 2) 0) (exp (get v i)) (sin (get v i))))))")
    assert "periods" not in hyad.explain(f).fired()
    assert "omp parallel" in hyad.compile(f, threads=2).cfunction.source


def test_nor_beside_a_loop_that_is_taken() -> None:
    """It is asked of each loop whether it is inside another."""
    turns = "(build n (fn [i] (if (= (% i 2) 0) (exp (* {0} (get v i))) (sin (get v i)))))"
    one, other = turns.format("2.0"), turns.format("(real k)")
    f = hyad.model(f"(fn [#^ (Vec n) v #^ Int m] #({one} (build m (fn [k] {other}))))")
    assert "periods" in hyad.explain(f).fired()
    loops = [x.op for x in f.optimised(f.specs((np.ones(5), 3))).body.binds if type(x.op) is Loop]
    assert any(not loop.accs and str(loop.count) == "n" for loop in loops)


LEFT_ALONE = {
    "signs": "(build n (fn [i] (* (if (= (% i 2) 0) 1.0 -1.0) (get v i))))",
    "a long period": "(build n (fn [i] (if (= (% i 9) 0) (exp (get v i)) (get v i))))",
    "a size": "(build n (fn [i] (if (= (% i n) 0) (exp (get v i)) (get v i))))",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) v #^ Int m] (build m (fn [k] {LEFT_ALONE[name]})))")
    assert "periods" not in hyad.explain(f).fired()


#: Rests and quotients of integers from -3 to 5 and from -4 to 4.
WHOLE = ["(// (+ (* 2 q) 1) 2)", "(% (+ (* 3 q) 5) 3)", "(% (+ (* 2 q) p 3) 2)", "(// (- (* 4 q) 3) 4)",
         "(% (- p (* 6 q) 7) 3)", "(% (+ (* 4 q) (* 2 p)) 4)", "(// (+ (* 4 q) (* 2 p)) 4)",
         "(// (- 1 (* 3 q)) 3)"]  # fmt: skip


@pytest.mark.parametrize("form", WHOLE)
def test_rests_and_quotients(form: str) -> None:
    """As Python has them, of negative integers too."""
    text = f"(fn [#^ Int n #^ Int m] (build n (fn [i] (build m (fn [j] (let [q (- i 3) p (- j 4)] {form}))))))"
    f = hyad.model(text)
    q, p = np.meshgrid(np.arange(9) - 3, np.arange(9) - 4, indexing="ij")
    wanted = eval(form_in_python(form), {"q": q, "p": p})
    for made in (memoised.compile(f), memoised.compile(f, "python")):
        np.testing.assert_array_equal(made(9, 9), wanted + np.zeros((9, 9), int))


def form_in_python(form: str) -> str:
    """The same with operators between."""
    items = form.replace("(", " ( ").replace(")", " ) ").split()

    def read() -> str:
        item = items.pop(0)
        if item != "(":
            return item
        operator, args = items.pop(0), []
        while items[0] != ")":
            args.append(read())
        items.pop(0)
        return "(" + operator.join(args) + ")"

    return read()
