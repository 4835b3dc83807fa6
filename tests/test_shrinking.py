"""States that get shorter in each iteration, in arrays of one length: trees of options, differences, sums by halves."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Apply, Make, While, all_binds

#: Each with its first argument's shape for n, and the others.
STATES: dict[str, tuple[str, Callable[[int], tuple[int, ...]], tuple]] = {
    "an American put, by slices": (
        """(fn [#^ (Vec m) s k r]
          (let [p (ref s)  v (ref (map (fn [x] (max 0.0 (- k x))) s))]
            (for [i (range (- (len s) 1))]
              (set! p (cut (deref p) None -1))
              (set! v (map (fn [c e] (max c (- k e)))
                           (* r (+ (* 0.4 (cut (deref v) 1 None)) (* 0.6 (cut (deref v) None -1)))) (deref p))))
            (get (deref v) 0)))""",
        lambda n: (n,),
        (0.3, 0.95),
    ),
    "differences, by while": (
        """(fn [#^ (Vec m) v]
          (let [w (ref v)  t (ref 0.0)]
            (while (> (len (deref w)) 1)
              (set! w (map (fn [a b] (sin (* a b))) (cut (deref w) 1 None) (cut (deref w) None -1)))
              (set! t (+ (deref t) (sum (deref w)))))
            (deref t)))""",
        lambda n: (n,),
        (),
    ),
    "halves, by loop": (
        """(fn [#^ (Vec m) v]
          (loop [u v]
            (if (<= (len u) 1) (sum u)
              (recur
                (build (// (len u) 2) (fn [i] (+ (sin (get u (* 2 i))) (* (get u (+ (* 2 i) 1)) (get u 0)))))))))""",
        lambda n: (n,),
        (),
    ),
    "two of one length": (
        """(fn [#^ (Vec m) v]
          (loop [u v  q (map cos v)  k 0]
            (if (<= (len u) 1) (+ (sum u) (sum q) k)
              (recur (build (- (len u) 1) (fn [i] (* (get u i) (cos (get q (+ i 1))))))
                     (build (- (len q) 1) (fn [i] (+ (get q i) (* 0.1 (get u (+ i 1)))))) (+ k 1)))))""",
        lambda n: (n,),
        (),
    ),
    "rows": (
        """(fn [#^ (Mat m 3) v]
          (loop [u v]
            (if (<= (len u) 1) (sum u)
              (recur (build (- (len u) 1) (fn [i] (sin (* (get u i) (get u (+ i 1))))))))))""",
        lambda n: (n, 3),
        (),
    ),
    "read after the loop": (
        """(fn [#^ (Vec m) v]
          (let [w (ref v)]
            (for [i (range (- (len v) 2))]
              (set! w (map (fn [a b] (* a b)) (cut (deref w) 1 None) (cut (deref w) None -1))))
            (* (get (deref w) 0) (sin (get (deref w) 1)) (sum (deref w)))))""",
        lambda n: (n,),
        (),
    ),
    "the first taken away": (
        """(fn [#^ (Vec m) v]
          (let [w (ref v)  out (ref 0.0)]
            (for [i (range (len v))]
              (let [x (get (deref w) 0)]
                (set! out (+ (* 0.5 (deref out)) (* x x)))
                (set! w (build (- (len (deref w)) 1) (fn [j] (- (get (deref w) (+ j 1)) (* 0.3 x)))))))
            (deref out)))""",
        lambda n: (n,),
        (),
    ),
}
GROWS = """(fn [#^ (Vec m) v #^ Int n]
  (loop [u v  k 0]
    (if (>= k n) (sum u)
      (recur (build (+ (len u) 1) (fn [i] (if (< i (len u)) (sin (get u i)) (* 0.5 k)))) (+ k 1)))))"""


def outcome(f: Any, args: tuple) -> Any:
    """What a call gives, or the class of its mistake."""
    try:
        return f(*args)
    except hyad.HyadError as error:
        return type(error)


def agree(f: Any, args: tuple) -> None:
    got, wanted = outcome(f, args), outcome(lambda *a: hyad.run(f, *a), args)
    if isinstance(wanted, type):
        assert got is wanted
    else:
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", STATES)
def test_values_and_derivatives(name: str) -> None:
    text, shape, rest = STATES[name]
    f = hyad.model(text, namespace={})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (0, 1, 2, 3, 5, 9):
            args = (np.random.default_rng(n).normal(size=shape(n)) / 2, *rest)
            agree(f, args)
            agree(hyad.grad(f, wrt=0), args)
            if n in (2, 3):
                agree(hyad.hessian(f, wrt=0), args)


@pytest.mark.parametrize("name", STATES)
def test_no_data_is_left(name: str) -> None:
    """Neither cells nor recursion, in the value and in the gradient by few numbers; it says so, and can be left."""
    text, shape, rest = STATES[name]
    f = hyad.model(text, namespace={})
    args = (np.zeros(shape(5)), *rest)
    for g in (f, hyad.grad(f, wrt=0)):
        assert "shrinking" in hyad.explain(g, args=args).fired()
    program = f.optimised(f.specs(args))
    assert not any(type(b.op) in (Make, Apply) for b in all_binds(program.body))
    off = hyad.compile(f, args=args, without="shrinking")
    x = np.random.default_rng(1).normal(size=shape(5)) / 2
    assert off(x, *rest) == f(x, *rest)
    assert "shrinking" not in hyad.explain(f, args=args, without="shrinking").fired()


def test_what_gets_longer_stays() -> None:
    f = hyad.model(GROWS, namespace={})
    v = np.array([0.3, -0.2, 0.5])
    assert "shrinking" not in hyad.explain(f, args=(v, 4)).fired()
    for n in (0, 1, 4):
        assert f(v, n) == pytest.approx(hyad.run(f, v, n), rel=1e-14)
        np.testing.assert_allclose(hyad.grad(f)(v, n), hyad.run(hyad.grad(f), v, n), rtol=1e-12)


def test_the_gradient_of_a_tree_needs_no_memory_but_its_states() -> None:
    """One array for each direction, changed in place: it was 420 us for 200 steps, and is 9."""
    f = hyad.model(
        """(fn [s k #^ Int n]
          (let [v (ref (build (+ n 1) (fn [j] (max 0.0 (- k (* s (exp (* 0.02 (- (* 2 j) n)))))))))]
            (for [i (range n)]
              (set! v (* 0.999 (+ (* 0.51 (cut (deref v) 1 None)) (* 0.49 (cut (deref v) None -1))))))
            (get (deref v) 0)))""",
        namespace={},
    )
    source = hyad.compile(hyad.grad(f)).source
    assert "malloc" not in source and "memset" not in source and "memcpy" not in source
    for n in (0, 1, 7):
        assert f(100.0, 105.0, n) == pytest.approx(hyad.run(f, 100.0, 105.0, n), rel=1e-13)
        assert hyad.grad(f)(100.0, 105.0, n) == pytest.approx(hyad.run(hyad.grad(f), 100.0, 105.0, n), rel=1e-12)
    program = f.optimised(f.specs((1.0, 1.0, 3)))
    assert not any(type(b.op) is While for b in all_binds(program.body))
