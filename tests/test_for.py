"""``for``, and the names of sizes in a body: values as Python has them, compiled and define by run, and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

V, M = np.array([3.0, 1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])


def both(text: str, *args: Any) -> float:
    """The value, compiled and define by run alike."""
    f = hyad.model(text)
    value = f(*args)
    assert hyad.run(f, *args) == value
    return value


@pytest.mark.parametrize(
    "bounds", ["0", "4", "1 4", "4 1", "-2 3", "1 9 3", "1 10 3", "9 1 3", "5 -1 -1", "5 0 -2", "0 5 -2"]
)
def test_ranges_are_pythons(bounds: str) -> None:
    text = f"(fn [x] (let [s (ref x)] (for [i (range {bounds})] (set! s (+ (* 3 (deref s)) i))) (deref s)))"
    wanted = 1.0
    for i in range(*map(int, bounds.split())):
        wanted = 3 * wanted + i
    assert both(text, 1.0) == wanted


def test_bounds_that_are_known_at_the_call() -> None:
    text = "(fn [v] (let [s (ref 0.0)] (for [i (range 1 (len v))] (set! s (+ (deref s) (* i (get v i))))) (deref s)))"
    for n in range(4):
        assert both(text, V[:n]) == sum(i * V[i] for i in range(1, n))


def test_loops_inside_one_another() -> None:
    text = """(fn [m] (let [s (ref 0.0)]
      (for [i (range (len m))  j (range i)  x (get m i)] (set! s (+ (* 0.5 (deref s)) (* x (get m j 0)))))
      (deref s)))"""
    wanted = 0.0
    for i in range(3):
        for j in range(i):
            for x in M[i]:
                wanted = 0.5 * wanted + x * M[j, 0]
    assert both(text, M) == wanted


def test_arrays_and_several_arrays() -> None:
    rows = "(fn [m] (let [s (ref 0.0)] (for [r m] (set! s (+ (* 2 (deref s)) (prod r)))) (deref s)))"
    assert both(rows, M) == 4 * 2 + 2 * 12 + 35
    names = "(fn [m v] (let [s (ref 0.0)] (for [#(#(a b) x) (zip m v)] (set! s (+ (deref s) (* a x) b))) (deref s)))"
    assert both(names, M, V) == float(M[:, 0] @ V + M[:, 1].sum())


def test_an_array_with_its_indices() -> None:
    rows = """(fn [m] (let [s (ref 0.0)]
      (for [#(i #(a b)) (enumerate m 2)  #(j x) (enumerate (get m (- i 2)))] (set! s (+ (deref s) (* i a x) (* j b))))
      (deref s)))"""
    wanted = sum(i * r[0] * x + j * r[1] for i, r in enumerate(M, 2) for j, x in enumerate(r))
    assert both(rows, M) == pytest.approx(wanted, rel=1e-15)


def test_names_of_the_model_are_not_the_languages() -> None:
    text = "(fn [v] (let [range (fn [n] v)  s (ref 0.0)] (for [_ (range 7)] (set! s (+ 1 (deref s)))) (deref s)))"
    assert both(text, V) == 3.0


def test_gradients() -> None:
    f = hyad.model("""(fn [v]
      (let [w (copy v)  s (ref 0.0)]
        (for [i (range 1 (len v))] (set-at! w i (* (get v i) (sin (get w (- i 1))))))
        (for [i (range (- (len v) 1) -1 -1)] (set! s (+ (* (deref s) (deref s)) (get w i))))
        (deref s)))""")

    def value(v: np.ndarray) -> float:
        w, s = v.copy(), 0.0
        for i in range(1, len(v)):
            w[i] = v[i] * np.sin(w[i - 1])
        for x in w[::-1]:
            s = s * s + x
        return s

    for n in (1, 2, 3):
        v, h = V[:n] / 4, 1e-6
        assert f(v) == pytest.approx(value(v), rel=1e-14)
        slopes = [(value(v + h * e) - value(v - h * e)) / (2 * h) for e in np.eye(n)]
        np.testing.assert_allclose(hyad.grad(f)(v), slopes, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(hyad.run(hyad.grad(f), v), hyad.grad(f)(v), rtol=1e-13)


@pytest.mark.parametrize(
    "text, message",
    [
        ("(for [i] x)", "for takes names and what they go through"),
        ("(for [i (range 3)])", "for takes names and what they go through"),
        ("(for [i (range 3) :if x] x)", "no such clause"),
        ("(for [i (range 0 3 x)] x)", "number, not an integer"),
        ("(for [i (range 0 3 0)] x)", "the step of a range is 0"),
        ("(for [i (range 0 3 0.5)] x)", "the step of a range is not an integer"),
        ("(for [#(i #(a b)) (enumerate (zip [x]))] x)", "2 names for 1 arrays"),
        ("(for [#(a b c) (zip [x] [x])] x)", "3 names for 2 arrays"),
        ("(for [a (enumerate [x])] x)", r"nothing binds `enumerate`(?s:.)*\(for \[#\(i x\) \(enumerate v\)\]"),
    ],
)
def test_what_is_no_for(text: str, message: str) -> None:
    with pytest.raises(hyad.HyadError, match=message):
        hyad.model(f"(fn [x] {text})")(1.0)


@pytest.mark.parametrize("bounds", [(0, 7, 3), (6, -1, -2), (2, 7, 2), (0, 7, 9), (3, 3, 1), (0, 7, -1), (4, 0, -4)])
def test_a_range_with_a_step_that_a_call_gives(bounds: tuple[int, int, int]) -> None:
    text = """(fn [v #^ Int a #^ Int b #^ Int k] (let [s (ref 1.0)]
      (for [i (range a b k)] (set! s (+ (get v i) (* 2 (deref s))))) (deref s)))"""
    v, wanted, slopes = np.arange(7.0), 1.0, np.zeros(7)
    for i in range(*bounds):
        wanted, slopes = v[i] + 2 * wanted, 2 * slopes
        slopes[i] += 1
    assert both(text, v, *bounds) == wanted
    np.testing.assert_array_equal(hyad.grad(hyad.model(text), wrt="v")(v, *bounds), slopes)
    for call in (hyad.model(text), lambda *args: hyad.run(hyad.model(text), *args)):
        with pytest.raises(hyad.HyadError, match="the step of a range is 0"):
            call(v, 0, 3, 0)


@pytest.mark.parametrize("step", [2**31, 3037000500, 2**32, 2**62, -(2**32)])
def test_a_range_with_a_large_step(step: int) -> None:
    text = "(fn [v #^ Int k] (let [s (ref 1.0)] (for [i (range 1 3 k)] (set! s (+ (get v i) (deref s)))) (deref s)))"
    assert both(text, np.arange(3.0), step) == (2.0 if step > 0 else 1.0)


def test_several_arrays_with_their_indices() -> None:
    text = """(fn [a b] (let [s (ref 0.0)]
      (for [#(i #(x y)) (enumerate (zip a b) 2)] (set! s (+ (deref s) (* i x y)))) (deref s)))"""
    assert both(text, V, V[::-1].copy()) == sum(i * x * y for i, (x, y) in enumerate(zip(V, V[::-1]), 2))
    for call in (hyad.model(text), lambda *args: hyad.run(hyad.model(text), *args)):
        with pytest.raises(hyad.HyadError, match="sizes"):
            call(V, np.ones(len(V) + 1))


def test_a_size_has_its_name_in_the_body() -> None:
    text = "(fn [#^ (Mat n 2) m #^ (Arr Int k) v] (+ (* 100 n) (* 10 k) ((fn [x] (* x n)) (sum (build n (fn [i] i))))))"
    assert both(text, M, np.arange(4)) == 100 * 3 + 10 * 4 + 3 * 3


def test_what_else_has_the_name_of_a_size() -> None:
    assert both("(fn [#^ (Vec n) v n] (* n (sum v)))", V, 2.0) == 12.0
    assert both("(fn [#^ (Vec n) v] (let [n 5.0] (* n (len v))))", V) == 15.0
    assert both("(fn [#^ (Vec sum) v] (sum v))", V) == 6.0
    module: dict[str, Any] = {}
    module["n"] = hyad.model("(defmodel n [x] (* 2 x))")
    assert hyad.model("(fn [#^ (Vec n) v] (n (sum v)))", namespace=module)(V) == 12.0
    with pytest.raises(hyad.HyadError, match="nothing here binds `n`"):
        hyad.model("(fn [#^ (Vec n) v] (deriv (* n n) n))")(V)


SWEEPS = """(defmodel sweeps [u f]
  (let [n (len u)
        u (ref u)]
    (for [_ (range (- n 3))]
      (let [old (deref u)]
        (set! u (build [n n]
                  (fn [i j]
                    (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- n 1)))
                      (get old i j)
                      (* (get f i j) (+ (get old (- i 1) j) (get old i (+ j 1))))))))))
    (sum (square (deref u)))))"""


def test_an_array_of_another_size_is_taken_out_of_its_reference_once() -> None:
    """Nothing says that the grid is square: what the reference holds is data, whose array is read where it is bound,
    and its adjoint is one array. Each element that was read made a copy of the adjoint."""
    u, f = np.random.default_rng(3).uniform(0.1, 1, (2, 6, 6))
    sweeps = hyad.model(SWEEPS)
    square = hyad.model(SWEEPS.replace("[u f]", "[#^ (Mat n n) u #^ (Mat n n) f]"))
    assert both(SWEEPS, u, f) == square(u, f)
    wanted = hyad.grad(square, wrt=("u", "f"))(u, f)
    np.testing.assert_allclose(hyad.grad(sweeps, wrt=("u", "f"))(u, f), wanted, rtol=1e-14)
    for encoding in ("record", "closure", "continuation"):
        np.testing.assert_allclose(hyad.vjp(sweeps, (u, f), 1.0, encoding), wanted, rtol=1e-14)
    move = hyad.jvp(sweeps, (u, f), (f, u))
    assert move == pytest.approx((wanted[0] * f + wanted[1] * u).sum(), rel=1e-13)
    tall = np.vstack((u, u[:1]))[:, :6]
    with pytest.raises(hyad.HyadError):  # read beyond the rows that it has
        sweeps(tall, tall)
    wide, more = np.hstack((u, u)), np.hstack((f, f))
    assert sweeps(wide, more) == square(u, f)
    slope = hyad.grad(sweeps, wrt=("u", "f"))(wide, more)
    np.testing.assert_allclose([x[:, :6] for x in slope], wanted, rtol=1e-14)
    assert not np.any([x[:, 6:] for x in slope])

    source = hyad.compile(hyad.grad(sweeps, wrt=("u", "f")), args=(u, f)).cfunction.source
    body = source[source.index("static void sweeps_grad_run") :]
    inner = [line for line in body.splitlines() if line.startswith(" " * 16)]
    assert inner and not any("->" in line or "hyad_room" in line for line in inner)


def test_what_an_array_that_grows_holds_is_read_where_it_is_bound() -> None:
    text = """(fn [x #^ Int n]
      (let [v (ref [x])]
        (while (< (len (deref v)) n)
          (let [old (deref v)
                s (fold + 0.0 (build (len old) (fn [i] (* (get old i) (+ i 1)))))]
            (set! v (concat old [(sin s)]))))
        (fold (fn [s y] (+ (* 0.5 s) y)) 0.0 (deref v))))"""
    f, h = hyad.model(text), 1e-6
    assert both(text, 0.3, 5) == f(0.3, 5)
    for n in (1, 2, 5):
        slope = (f(0.3 + h, n) - f(0.3 - h, n)) / (2 * h)
        assert hyad.grad(f, wrt="x")(0.3, n) == pytest.approx(slope, rel=1e-8)
        assert hyad.jvp(f, (0.3, n), (1.0, 0)) == pytest.approx(slope, rel=1e-8)
        again = hyad.grad(hyad.grad(f, wrt="x"), wrt="x")(0.3, n)
        curve = (hyad.grad(f, wrt="x")(0.3 + h, n) - hyad.grad(f, wrt="x")(0.3 - h, n)) / (2 * h)
        assert again == pytest.approx(curve, rel=1e-7, abs=1e-8)


JACOBI = """(fn [u f] (let [n (len u)  u (ref u)]
  (for [s (range 4)]
    (let [old (deref u)]
      (set! u
        (build [n n]
          (fn [i j]
            (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- n 1)))
              (get old i j)
              (* 0.25 (+ (get old (- i 1) j) (get old i (- j 1)) (get old i (+ j 1)) (get f i j) (real s)))))))))
  (sum (square (deref u)))))"""


def test_a_state_that_is_of_another_size_after_the_first_iteration() -> None:
    """Nothing says that the matrix is square: its first state is not, and all others are. That takes no data."""
    f = hyad.model(JACOBI, namespace={})
    g = hyad.grad(f, wrt=(0, 1))
    rng = np.random.default_rng(2)
    for n, m in ((1, 1), (2, 2), (5, 5), (4, 6)):
        u, right = rng.normal(size=(n, m)), rng.normal(size=(n, n))
        assert f(u, right) == pytest.approx(hyad.run(f, u, right), rel=1e-13)
        for one, other in zip(g(u, right), hyad.run(g, u, right)):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    made = hyad.compile(g, args=(u, right)).cfunction
    assert not made.arena and "hyad_room" not in made.source
    with pytest.raises(hyad.BoundsError):
        f(rng.normal(size=(4, 3)), right)


def test_a_state_that_is_of_another_size_after_each_iteration() -> None:
    f = hyad.model(
        """(fn [u] (let [u (ref u)]
             (for [s (range 3)] (set! u (slice (* 2.0 (deref u)) 1 (len (deref u)))))
             (sum (square (deref u)))))""",
        namespace={},
    )
    u = np.arange(1.0, 8.0)
    assert f(u) == pytest.approx(64 * np.sum(u[3:] ** 2))
    assert hyad.check_grad(f, (u,))


def test_a_descending_loop_may_be_empty() -> None:
    """Nothing is checked of subscripts that there are none of: a knapsack with an item that is too heavy."""
    knapsack = hyad.model(
        """(fn [#^ (Arr Int n) weight #^ (Vec n) worth #^ Int most]
      (let [best (zeros (+ most 1))]
        (for [i (range n)  c (range most (- (get weight i) 1) -1)]
          (set-at! best c (max (get best c) (+ (get best (- c (get weight i))) (get worth i)))))
        (get best most)))""",
        namespace={},
    )
    weight, worth = np.array([2, 3, 9, 1]), np.array([3.0, 4.0, 20.0, 1.0])
    for most in (0, 1, 3, 6, 9, 12):
        args = weight, worth, most
        assert knapsack(*args) == hyad.run(knapsack, *args)
        np.testing.assert_array_equal(
            hyad.grad(knapsack, wrt="worth")(*args), hyad.run(hyad.grad(knapsack, wrt="worth"), *args)
        )
    down = hyad.model(
        """(fn [v #^ Int w #^ Int cap]
      (let [s (ref 0.0)] (for [c (range cap (- w 1) -1)] (set! s (+ (deref s) (get v (- c w))))) (deref s)))""",
        namespace={},
    )
    for w, cap in ((4, 2), (2, 2), (2, 4), (-3, -2), (9, 0)):
        assert down(np.arange(1.0, 4.0), w, cap) == hyad.run(down, np.arange(1.0, 4.0), w, cap)
    with pytest.raises(hyad.BoundsError, match="outside axis 0"):
        down(np.ones(3), 2, 5)
    behind = hyad.model(
        """(fn [v #^ Int w #^ Int cap]
      (let [s (ref 0.0)  n (max 0 (- cap (- w 1)))]
        (for [c (range cap (- w 1) -1)] (set! s (+ (deref s) (get v (- c w)))))
        (+ (deref s) (get v (- (+ cap 1) n w)))))""",
        namespace={},
    )
    assert behind(np.arange(1.0, 4.0), 2, 4) == hyad.run(behind, np.arange(1.0, 4.0), 2, 4)
    with pytest.raises(hyad.BoundsError, match="outside axis 0"):  # what an empty loop would have needed is not known
        behind(np.arange(1.0, 4.0), 4, 2)
