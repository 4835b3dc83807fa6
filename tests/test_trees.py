"""Options on a tree of prices, as newcomers write them: powers in tables, states in one array, no check left."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import INT, Block, If, Loop, While, all_binds

PARAMS = "[#^ Real spot #^ Real sigma #^ Real rate #^ Int n]"
MARKET = """dt (/ 1.0 n)  u (exp (* sigma (sqrt dt)))  d (/ 1.0 u)  disc (exp (- (* rate dt)))
            p (/ (- (exp (* rate dt)) d) (- u d))"""
#: American puts with strike 100.
PUTS = {
    "elements, u^j d^(k-j)": """
        v (build (+ n 1) (fn [j] (max 0.0 (- 100.0 (* spot (** u j) (** d (- n j)))))))]
      (for [k (range (- n 1) -1 -1)]
        (for [j (range (+ k 1))]
          (set-at! v j (max (- 100.0 (* spot (** u j) (** d (- k j))))
                            (* disc (+ (* p (get v (+ j 1))) (* (- 1 p) (get v j))))))))
      (get v 0)""",
    "elements, u^(2j-k)": """
        v (build (+ n 1) (fn [j] (max 0.0 (- 100.0 (* spot (** u (- (* 2 j) n)))))))]
      (for [k (range (- n 1) -1 -1)]
        (for [j (range (+ k 1))]
          (set-at! v j (max (- 100.0 (* spot (** u (- (* 2 j) k))))
                            (* disc (+ (* p (get v (+ j 1))) (* (- 1 p) (get v j))))))))
      (get v 0)""",
    "whole arrays": """
        payoff (fn [k] (maximum 0.0 (- 100.0 (* spot (** u (- (* 2 (arange (+ n 1))) k))))))]
      (get (fold (fn [v s] (maximum (payoff (- n 1 s))
                                    (* disc (+ (* p (concat (cut v 1 None) [0.0])) (* (- 1 p) v)))))
                 (payoff n) (arange n)) 0)""",
    "a new array each step": """
        payoff (fn [k j] (max 0.0 (- 100.0 (* spot (exp (* sigma (sqrt dt) (- (* 2 j) k)))))))]
      (get
        (loop [k n  v (build (+ n 1) (fn [j] (payoff n j)))]
          (if (= k 0) v
            (recur (- k 1)
              (build k (fn [j] (max (payoff (- k 1) j) (* disc (+ (* p (get v (+ j 1))) (* (- 1.0 p) (get v j))))))))))
        0)""",
    "slices": """
        prices (fn [k] (* spot (** u (- (* 2.0 (arange (+ k 1))) k))))]
      (get
        (loop [k n  v (maximum 0.0 (- 100.0 (prices n)))]
          (if (= k 0) v
            (recur (- k 1) (maximum (- 100.0 (prices (- k 1)))
                                    (* disc (+ (* p (cut v 1 None)) (* (- 1.0 p) (cut v 0 -1))))))))
        0)""",
    "prices step by step": """
        s (ref (* spot (** u (- (* 2.0 (arange (+ n 1))) n))))  v (ref (maximum 0.0 (- 100.0 (deref s))))]
      (for [k (range n)]
        (set! s (* d (cut (deref s) 1 None)))
        (set! v (maximum (- 100.0 (deref s))
                         (* disc (+ (* p (cut (deref v) 1 None)) (* (- 1 p) (cut (deref v) None -1)))))))
      (get (deref v) 0)""",
}  # fmt: skip


def model(name: str, steps: int | None = None) -> hyad.Model:
    params = PARAMS if steps is None else PARAMS.replace(" #^ Int n", "")
    n = "" if steps is None else f"n {steps} "
    return hyad.model(f"(fn {params} (let [{n}{MARKET} {PUTS[name]}))", namespace={})


def put(spot: complex, sigma: complex, rate: complex, n: int) -> complex:
    """By NumPy, with complex steps for derivatives."""
    dt = 1 / n
    u = np.exp(sigma * np.sqrt(dt))
    p = (np.exp(rate * dt) - 1 / u) / (u - 1 / u)

    def larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(np.real(a) > np.real(b), a, b)

    v = larger(100 - spot * u ** (2.0 * np.arange(n + 1) - n), np.zeros(n + 1))
    for k in range(n - 1, -1, -1):
        v = larger(100 - spot * u ** (2.0 * np.arange(k + 1) - k), np.exp(-rate * dt) * (p * v[1:] + (1 - p) * v[:-1]))
    return v[0]


def slopes(x: tuple[float, ...], n: int) -> np.ndarray:
    return np.array([np.imag(put(*(a + 1e-30j * (j == k) for j, a in enumerate(x)), n)) * 1e30 for k in range(3)])


MARKETS = [(100.0, 0.2, 0.05), (83.0, 0.31, 0.02), (120.0, 0.4, 0.1)]


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PUTS)
def test_an_american_put(name: str) -> None:
    f, wrt = model(name), ("spot", "sigma", "rate")
    value, gradient = hyad.compile(f), hyad.compile(hyad.grad(f, wrt=wrt), args=(*MARKETS[0], 3))
    for n in (1, 2, 3, 17):
        for x in MARKETS:
            assert value(*x, n) == pytest.approx(np.real(put(*x, n)), rel=1e-12)
            np.testing.assert_allclose(gradient(*x, n), slopes(x, n), rtol=1e-9, atol=1e-9)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PUTS)
def test_what_its_code_is(name: str) -> None:
    """No power, and no exponential, in the loop over a level of the tree; no check there, no list, no while."""
    f = model(name)
    for g in (f, hyad.grad(f, wrt=("spot", "sigma", "rate"))):
        program = g.optimised(g.specs((*MARKETS[0], 3)))
        assert not any(type(x.op) is While for x in all_binds(program.body))
        assert dearest(program.body) <= 1
        assert not any(a.type == INT for x in all_binds(program.body) if type(x.op) is Loop for a in x.op.accs)
        assert not hyad.compile(g, args=(*MARKETS[0], 3)).cfunction.arena


def dearest(block: Block, depth: int = 0) -> int:
    """How many loops stand around the innermost power or exponential."""
    found = [depth for x in block.binds if getattr(x.op, "name", "") in ("**", "exp")]
    for x in block.binds:
        if type(x.op) is Loop:
            found.append(dearest(x.op.body, depth + 1))
        elif type(x.op) is If:
            found += [dearest(x.op.then, depth), dearest(x.op.orelse, depth)]
    return max(found, default=0)


@pytest.mark.parametrize("name", ["slices", "a new array each step"])
def test_a_known_number_of_steps_is_a_loop_too(name: str) -> None:
    f, steps = model(name, 60), 60
    gradient = hyad.grad(f, wrt=("spot", "sigma", "rate"))
    assert "recursion" in hyad.explain(f).fired()
    made, back = hyad.compile(f), hyad.compile(gradient)
    assert len(made.source) < 4000 and len(back.source) < 12000 and not back.cfunction.arena
    for x in MARKETS:
        assert made(*x) == pytest.approx(np.real(put(*x, steps)), rel=1e-12)
        np.testing.assert_allclose(back(*x), slopes(x, steps), rtol=1e-9, atol=1e-9)
