"""Hessians of losses: functions of a sample are called once, not once for each column."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import Block, If, Loop, all_binds

#: A loss, what its arguments are for n samples of d numbers and k classes or units, and how many loops its calls may be
#: in.
LOSSES = {
    "softmax, by for": (
        """(fn [#^ (Mat k d) w #^ (Mat n d) x #^ (Arr Int n) y]
          (let [s (ref 0.0)]
            (for [#(row c) (zip x y)]
              (let [z (@ w row)] (set! s (+ (deref s) (- (log (sum (exp z))) (get z c))))))
            (deref s)))""",
        "w x y",
    ),
    "softmax, by arrays": (
        """(fn [#^ (Mat k d) w #^ (Mat n d) x #^ (Arr Int n) y]
          (let [z (@ x (transpose w))] (mean (map (fn [row c] (- (logsumexp row) (get row c))) z y))))""",
        "w x y",
    ),
    "a layer": (
        """(fn [#^ (Mat k d) w #^ (Vec k) v #^ (Mat n d) x #^ (Vec n) t]
          (let [s (ref 0.0)]
            (for [#(row e) (zip x t)]
              (let [o (ref 0.0)]
                (for [j (range k)] (set! o (+ (deref o) (* (get v j) (tanh (dot (get w j) row))))))
                (set! s (+ (deref s) (square (- (deref o) e))))))
            (/ (deref s) n)))""",
        "w v x t",
    ),
    "two layers": (
        """(fn [#^ (Mat k d) w #^ (Vec k) v #^ (Mat n d) x #^ (Vec n) t]
          (/ (sum (map (fn [row e] (square (- (tanh (dot v (map tanh (@ w row)))) e))) x t)) n))""",
        "w v x t",
    ),
    "Poisson": (
        """(fn [#^ (Vec d) u #^ (Mat n d) x #^ (Vec n) t]
          (let [s (ref 0.0)]
            (for [#(row e) (zip x t)]
              (let [z (dot row u)] (set! s (+ (deref s) (- (exp z) (* e z))))))
            (* 0.5 (deref s))))""",
        "u x t",
    ),
    "of a row that it normalises": (
        """(fn [#^ (Vec d) u #^ (Mat n d) x]
          (let [s (ref 0.0)]
            (for [row x]
              (let [a (map (fn [r p] (exp (* r p))) row u)]
                (set! s (+ (deref s) (log (+ 1.0 (sum (* a a))))))))
            (deref s)))""",
        "u x",
    ),
}


def arguments(names: str, n: int, d: int, k: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n + 10 * d + 100 * k)
    shapes = {"w": (k, d), "x": (n, d), "v": (k,), "t": (n,), "u": (d,)}
    return [rng.integers(0, k, n) if a == "y" else rng.uniform(-1, 1, shapes[a]) for a in names.split()]


def hessian(name: str) -> hyad.Model:
    return hyad.hessian(hyad.model(LOSSES[name][0], namespace={}), 0)


def deepest(block: Block, depth: int = 0, direction: bool = False) -> bool:
    """Whether a call stands in a loop over directions."""
    for x in block.binds:
        if direction and getattr(x.op, "name", "") in ("exp", "tanh", "log"):
            return True
        if type(x.op) is Loop and deepest(x.op.body, depth + 1, direction or x.op.index.soft):
            return True
        if type(x.op) is If and (deepest(x.op.then, depth, direction) or deepest(x.op.orelse, depth, direction)):
            return True
    return False


@pytest.mark.some(3)
@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize("name", LOSSES)
def test_hessians_of_losses(name: str, target: str) -> None:
    h, names = hessian(name), LOSSES[name][1]
    made = hyad.compile(h, target=target, args=arguments(names, 2, 2, 2))
    apart = hyad.compile(h, target=target, args=arguments(names, 2, 2, 2), without="data-first")
    for n, d, k in ((0, 1, 1), (1, 1, 1), (1, 3, 2), (9, 2, 3), (17, 5, 4)):
        args = arguments(names, n, d, k)
        want = made(*args)
        if n or "mean" not in LOSSES[name][0] and "(/ " not in LOSSES[name][0]:
            assert oracle.mismatch(hyad.run(h, *args), want, 1e-11) is None
        assert oracle.mismatch(apart(*args), want, 1e-12) is None


@pytest.mark.parametrize("name", ["softmax, by for", "softmax, by arrays", "a layer"])
def test_no_call_is_made_for_each_direction(name: str) -> None:
    """The others' samples have tables of what is called, or call something else for each row."""
    h, args = hessian(name), arguments(LOSSES[name][1], 2, 5, 6)
    program = h.optimised(h.specs(args))
    assert not deepest(program.body) and deepest(h.without("data-first").optimised(h.specs(args)).body)
    assert "data-first" in hyad.explain(h, args=args).fired()


def test_what_calls_nothing_is_left() -> None:
    """The columns of a least-squares problem's Hessian stay outside."""
    f = hyad.model(
        """(fn [#^ (Vec d) u #^ (Mat n d) x #^ (Vec n) t]
          (let [s (ref 0.0)]
            (for [#(row e) (zip x t)] (set! s (+ (deref s) (square (- (dot row u) e)))))
            (deref s)))""",
        namespace={},
    )
    args = arguments("u x t", 3, 2, 1)
    assert "data-first" not in hyad.explain(hyad.hessian(f, 0), args=args).fired()
    assert sum(type(x.op) is Loop for x in all_binds(hyad.hessian(f, 0).optimised().body)) > 0
