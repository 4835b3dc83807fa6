"""Loops that change a matrix in a branch: what a gradient remembers of them, and what it is, whatever is guarded."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised

RNG = np.random.default_rng(12)

#: What is done with B in each iteration over p and q, and how often, of those, in the tests' matrix.
GUARDED = {
    "rotated columns": """(let [t (tanh (get B p q))]
        (when (> t 0.0)
          (for [k (range n)]
            (let [x (get B k p) y (get B k q)] (set-at! B k p (- x (* t y))) (set-at! B k q (+ y (* t x)))))))""",
    "rotated both ways": """(let [a (get B p q)]
        (when (> (abs a) 0.4)
          (let [h (/ (- (get B q q) (get B p p)) (* 2 a))
                t (/ (if (>= h 0) 1.0 -1.0) (+ (abs h) (sqrt (+ 1 (* h h)))))
                c (/ 1 (sqrt (+ 1 (* t t)))) s (* t c)]
            (for [k (range n)]
              (let [x (get B k p) y (get B k q)]
                (set-at! B k p (- (* c x) (* s y))) (set-at! B k q (+ (* s x) (* c y)))))
            (for [k (range n)]
              (let [x (get B p k) y (get B q k)]
                (set-at! B p k (- (* c x) (* s y))) (set-at! B q k (+ (* s x) (* c y))))))))""",
    "unless": """(if (< (get B p q) 0.1) None
        (for [k (range q n)] (set-at! B p k (- (get B p k) (* (get B q k) (get B p q))))))""",
    "a number between": """(when (!= (get B q p) 0.0)
        (for [k (range n)] (set-at! B p k (+ (get B p k) (* 0.1 (get B q k)))))
        (let [r (sin (get B p p))]
          (set-at! B p p (* 0.5 r))
          (for [k (range n)] (set-at! B q k (+ (get B q k) (* r (get B p k)))))))""",
    "one in another": """(when (> (get B p q) -0.5)
        (for [k (range n)] (set-at! B k p (* 0.9 (get B k p))))
        (when (< (get B q p) 0.5) (for [k (range n)] (set-at! B q k (+ 0.1 (* (get B q k) (get B p q)))))))""",
    "swapped rows": """(when (< (abs (get B p p)) (abs (get B q p)))
        (for [k (range n)] (let [x (get B p k)] (set-at! B p k (get B q k)) (set-at! B q k x))))""",
}


def model(name: str) -> hyad.Model:
    steps = GUARDED.get(name, TABLE)
    return hyad.model(
        f"""(fn [#^ (Mat n n) A]
          (let [B (copy A)] (for [p (range n) q (range (+ p 1) n)] {steps}) (sum (sin (* A B)))))""",
        namespace={},
    )


#: A call of what a loop that may not run, or be ragged, is at: how far its index goes is not known before.
TABLE = """(when (> (get B p q) 0.0)
        (set-at! B p 0 (tanh (get B q p)))
        (for [k (range (- n p))] (when (< p k) (set-at! B 0 p (+ (get B 0 p) (* 0.3 (tanh (get A 0 p))))))))"""


@pytest.mark.parametrize("name", [*GUARDED, "a table behind two guards"])
def test_gradients_through_guarded_loops(name: str) -> None:
    """Against differences, where no guard changes, and the value against the model as it is read."""
    f = model(name)
    both, value = memoised.compile(hyad.value_and_grad(f)), memoised.compile(f)
    for n in (1, 2, 3, 6, 9):
        A, along = RNG.normal(size=(2, n, n))
        A[0, -1] = A[-1, 0] = 0.0
        out, gradient = both(A)
        assert out == pytest.approx(value(A), rel=1e-12)
        if n < 6:
            assert out == pytest.approx(hyad.run(f, A), rel=1e-12)
        step = 1e-7 * along * (A != 0.0)
        up, down = value(A + step), value(A - step)
        assert np.sum(gradient * step) == pytest.approx((up - down) / 2, rel=1e-5, abs=1e-13)


@pytest.mark.parametrize("name", GUARDED)
def test_the_elements_that_are_read_are_remembered(name: str) -> None:
    """And not the matrix, for each of n n iterations."""
    gradient = memoised.compile(hyad.grad(model(name)))
    assert not gradient.cfunction.arena and "n*n*n*n" not in gradient.cfunction.workspace


def test_what_a_guard_protects_is_not_computed() -> None:
    """A quotient by zero behind a guard is neither in the value nor in the slope."""
    f = model("rotated both ways")
    gradient = memoised.compile(hyad.grad(f))(np.zeros((4, 4)))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("mode", ["jvp", "hvp"])
def test_other_modes(mode: str) -> None:
    f = model("rotated both ways")
    A, along = RNG.normal(size=(2, 4, 4))
    if mode == "jvp":
        wanted = np.sum(memoised.compile(hyad.grad(f))(A) * along)
    else:
        g = memoised.compile(hyad.grad(f))
        wanted = (g(A + 1e-6 * along) - g(A - 1e-6 * along)) / 2e-6
    found = getattr(hyad, mode)(f, (A,), (along,))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
