"""Rows of Jacobians: what begins as one number among zeros is that number's row, or one number in a row of sums."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import Block, If, Loop, all_binds, blocks_of

#: A model, the shapes of its arguments for n and d, by what it is differentiated, and how deep the loops are in which
#: the Jacobian is made.
ROWS = {
    "softmax": ("(fn [#^ (Vec n) z] (softmax z))", lambda n, d: [(n,)], 0, 2),
    "softmax by hand": (
        "(fn [#^ (Vec n) z] (let [e (exp (- z (get z 0)))] (/ e (sum e))))", lambda n, d: [(n,)], 0, 3,
    ),
    "normalised": ("(fn [#^ (Vec n) z] (/ z (sqrt (+ 1.0 (dot z z)))))", lambda n, d: [(n,)], 0, 2),
    "centred": ("(fn [#^ (Vec n) z] (let [c (- z (mean z))] (sin c)))", lambda n, d: [(n,)], 0, 2),
    "used twice": (
        """(fn [#^ (Vec d) w #^ (Mat n d) x #^ (Vec n) y]
          (let [z (@ x w)  e (exp (* 2.0 z))] (- (/ (- e 1) (+ e 1)) y)))""",
        lambda n, d: [(d,), (n, d), (n,)],
        0,
        2,
    ),
    "used three times": (
        "(fn [#^ (Vec d) w #^ (Mat n d) x] (let [z (@ x w)] (* z (+ (sin z) (exp z)))))",
        lambda n, d: [(d,), (n, d)],
        0,
        2,
    ),
    "log-likelihoods": (
        """(fn [#^ (Vec d) w #^ (Mat n d) x #^ (Vec n) y]
          (let [z (@ x w)] (- (* y z) (log (+ 1.0 (exp z))))))""",
        lambda n, d: [(d,), (n, d), (n,)],
        0,
        2,
    ),
}  # fmt: skip


def depth(block: Block) -> int:
    """How many loops stand inside one another."""
    found = [0]
    for x in block.binds:
        inner = max((depth(b) for b in blocks_of(x.op)), default=0)
        found.append(inner + (type(x.op) is Loop))
    return max(found)


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_jacobians(name: str) -> None:
    text, shapes, wrt, loops = ROWS[name]
    jacobian = hyad.jacobian(hyad.model(text, namespace={}), wrt)
    rng = np.random.default_rng(4)

    def arguments(n: int, d: int) -> list[np.ndarray]:
        return [rng.uniform(0.1, 1.0, s) for s in shapes(n, d)]

    program = jacobian.optimised(jacobian.specs(arguments(2, 2)))
    assert depth(program.body) <= loops
    rows = [x.op for x in program.body.binds if type(x.op) is Loop][-1]
    assert not any(type(x.op) is If for x in all_binds(rows.body))
    made = hyad.compile(jacobian, args=arguments(2, 2))
    for n, d in ((1, 1), (2, 3), (7, 4), (12, 1)):
        args = arguments(n, d)
        assert oracle.mismatch(hyad.run(jacobian, *args), made(*args), 1e-11) is None


def test_what_is_added_to_one_element_twice_is_one_sum() -> None:
    """``(add-at (add-at zeros j a) j b)`` is read as zeros but for ``(+ a b)``."""
    f = hyad.model(
        """(fn [#^ (Vec n) v #^ Int j]
          (let [z (zeros n)]
            (set-at! z j (sin (get v j)))
            (set-at! z j (+ (get z j) (cos (get v j))))
            (sum (build n (fn [i] (* (get z i) (get v i)))))))""",
        namespace={},
    )
    v = np.linspace(0.1, 1.0, 5)
    made, gradient = hyad.compile(f), hyad.compile(hyad.grad(f, wrt="v"))
    for j in range(5):
        assert made(v, j) == pytest.approx((np.sin(v[j]) + np.cos(v[j])) * v[j], rel=1e-15)
        want = np.zeros(5)
        want[j] = np.sin(v[j]) + np.cos(v[j]) + v[j] * (np.cos(v[j]) - np.sin(v[j]))
        np.testing.assert_allclose(gradient(v, j), want, rtol=1e-14)
