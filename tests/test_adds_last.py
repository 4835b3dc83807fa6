"""Loops that add to elements that another iteration may add to: what is added, computed for some iterations at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

#: The elastic energy of a triangle of a mesh, of which ``t`` has the corners.
TRIANGLE = """(let [a (get x (get t e 0)) b (get x (get t e 1)) c (get x (get t e 2)) u (- b a) v (- c a)
    e00 (- (dot u u) 1) e11 (- (dot v v) 1) e01 (dot u v) area (- (* (get u 0) (get v 1)) (* (get u 1) (get v 0)))
    r (/ (+ e00 e11) (+ 1 (* area area)))]
  (+ (* 0.5 r r) (* e00 e00) (* e11 e11) (* 2 e01 e01) (* 0.1 area)))"""

MESHES = {
    "a sum": f"(fn [#^ (Mat n 2) x #^ (Arr Int m 3) t] (ifold (fn [s e] (+ s {TRIANGLE})) 0.0 m))",
    "a table": f"""(fn [#^ (Mat n 2) x #^ (Arr Int m 3) t]
      (let [w (build m (fn [e] {TRIANGLE}))] (ifold (fn [s e] (+ s (* 0.01 (get w e) (get w e)))) 0.0 m)))""",
    "in a for": f"""(fn [#^ (Mat n 2) x #^ (Arr Int m 3) t]
      (let [s (ref 0.0)] (for [e (range m)] (set! s (+ (deref s) {TRIANGLE}))) (deref s)))""",
}

#: Numbers of which each is changed by what flows to it from both sides.
FLOWS = {
    "clamped neighbours": """(fn [#^ (Mat n 2) q]
      (let [flow (fn [a b]
              (let [u (/ (get a 1) (get a 0)) v (/ (get b 1) (get b 0)) c (sqrt (+ 1 (* u u))) d (sqrt (+ 1 (* v v)))
                    l (min (- u c) (- v d)) r (max (+ u c) (+ v d))]
                (cond (>= l 0) (get a 1) (<= r 0) (get b 1)
                      True (/ (+ (* r (get a 1)) (* -1 l (get b 1)) (* l r (- (get b 0) (get a 0)))) (- r l)))))
            f (build (+ n 1) (fn [i] (flow (get q (max 0 (- i 1))) (get q (min (- n 1) i)))))]
        (dot f f)))""",
    "angles of a curve": """(fn [#^ (Mat n 2) q]
      (ifold (fn [s i]
               (let [u (- (get q (+ i 1)) (get q i)) v (- (get q (+ i 2)) (get q (+ i 1)))
                     a (- (* (get u 0) (get v 1)) (* (get u 1) (get v 0)))]
                 (+ s (/ (* a a) (* (dot u u) (dot v v))))))
             0.0 (max 0 (- n 2))))""",
}


def mesh(m: int, n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    corners = np.arange(m)[:, None] * [1, 3, 5] + [0, 2, 7]
    return np.sin(1.0 + np.arange(2.0 * n)).reshape(n, 2), corners % n


def row(n: int) -> np.ndarray:
    return np.stack([1.5 + 0.3 * np.sin(np.arange(n)), np.cos(1.7 * np.arange(n))], 1)


def fired(f: hyad.Model, *args: Any) -> bool:
    return any("adds-last" in line for line in str(hyad.explain(f, args=args)).splitlines())


@pytest.mark.parametrize("name", MESHES)
def test_meshes(name: str) -> None:
    """Checks of corners aside; none of two elements is known to be another one. As long as a tile, longer, and not."""
    f = hyad.model(MESHES[name], namespace={})
    g = hyad.grad(f, wrt=0)
    assert fired(g, *mesh(100))
    made = [hyad.compile(h, args=mesh(100)) for h in (f, g)]
    plain = [hyad.compile(h.without("adds-last"), args=mesh(100)) for h in (f, g)]
    for m in (0, 1, 2, 31, 32, 33, 64, 100):
        for ours, theirs in zip(made, plain):
            np.testing.assert_allclose(ours(*mesh(m)), theirs(*mesh(m)), rtol=1e-13, atol=1e-12)
    assert hyad.check_grad(f, mesh(40), wrt=0)


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_neighbours(name: str, dtype: str) -> None:
    f = hyad.model(FLOWS[name], namespace={})
    g, tolerance = hyad.grad(f), 1e-12 if dtype == "f64" else 2e-4
    assert fired(g, row(50))
    made, real = hyad.compile(g, args=(row(50),), dtype=dtype), "float32" if dtype == "f32" else "float64"
    plain = hyad.compile(g, args=(row(50),), without=("adds-last",))
    for n in (1, 2, 3, 31, 32, 33, 34, 35, 66, 97):
        np.testing.assert_allclose(made(row(n).astype(real)), plain(row(n)), rtol=tolerance, atol=1e-5)
    assert hyad.check_grad(f, (row(40),))


@pytest.mark.parametrize("threads", [2, 3])
def test_on_threads(threads: int) -> None:
    f = hyad.model(MESHES["a sum"], namespace={})
    g = hyad.grad(f, wrt=0)
    for m in (5, 40, 20_000):
        made = hyad.compile(g, args=mesh(m), threads=threads)
        np.testing.assert_allclose(made(*mesh(m)), g(*mesh(m)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("at", [0, 31, 32, 50, 99])
@pytest.mark.parametrize("corner", [-13, 12, 40])
def test_what_is_no_corner_is_an_error(at: int, corner: int) -> None:
    """The first one that is none is told of, though others of its tile come before it is read."""
    f = hyad.model(MESHES["a sum"], namespace={})
    x, t = mesh(100)
    t[at, 1] = corner
    t[at + 1 :, 2] = 77
    for h in (f, hyad.grad(f, wrt=0)):
        with pytest.raises(hyad.HyadError, match=r"get t e 1"):
            h(x, t)
    with pytest.raises(hyad.HyadError) as ours:
        f(x, t)
    with pytest.raises(hyad.HyadError) as theirs:
        f.without("adds-last")(x, t)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "text",
    [
        # little for each number that is added
        "(fn [#^ (Vec n) x #^ (Arr Int m) p] (ifold (fn [s e] (+ s (square (get x (get p e))))) 0.0 m))",
        # no two of a loop's elements are one: a compiler sees that
        """(fn [#^ (Mat n 2) x #^ (Vec n) p] (ifold (fn [s e]
             (let [a (get x e 0) b (get x e 1)] (+ s (/ (* a b (get p e)) (sqrt (+ 1 (* a a) (* b b)))))))
           0.0 n))""",
        # calls of the C library, one at a time anyway
        """(fn [#^ (Vec n) x #^ (Arr Int m) p] (ifold (fn [s e]
             (let [a (get x (get p e))] (+ s (exp (/ (sin (* a a)) (sqrt (+ 2 (cos a)))))))) 0.0 m))""",
    ],
)
def test_left_as_they_are(text: str) -> None:
    f = hyad.model(text, namespace={})
    args = (np.ones((40, 2)), np.ones(40)) if "Mat" in text else (np.ones(40), np.arange(20))
    assert not fired(hyad.grad(f, wrt=0), *args)


def test_cost_of_branches() -> None:
    """Both sides of a branch are computed: not where they are nearly all that an iteration does."""
    far = "(* a a (/ (+ 1 (* a b) (sqrt (+ 1 (* b b)))) (+ 1 (* a a (+ 2 (sqrt (+ 1 (* a a b b))))))))"
    text = f"""(fn [#^ (Vec n) x #^ (Arr Int m) p #^ (Arr Int m) q]
      (ifold (fn [s e] (let [a (get x (get p e)) b (get x (get q e))] (+ s (if (< (- a b) 0.1) {far} 0.0)))) 0.0 m))"""
    f = hyad.model(text, namespace={})
    args = np.sin(np.arange(30.0)), np.arange(60) % 30, np.arange(60) * 7 % 30
    assert not fired(hyad.grad(f, wrt=0), *args)
    assert hyad.check_grad(f, args, wrt=0)
