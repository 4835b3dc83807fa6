"""Integers that a loop takes on by the same step are multiples of its index."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import INT, Loop, all_binds

V = np.array([0.3, -0.7, 1.1, 0.4, 0.9, -0.2, 0.8])


def going(step: str, start: str, at: str = "k") -> str:
    """The sum of elements at what an integer comes to, and the integer after it."""
    return f"""(fn [#^ (Vec n) v #^ Int m]
      (let [k (ref {start})  s (ref 1.0)]
        (for [i (range m)]
          (let [k0 (deref k)]
            (set! s (+ (deref s) (sin (* (deref s) (get v {at.replace("k", "k0")})))))
            (set! k {step.replace("k", "k0")})))
        [(deref s) (real (deref k))]))"""


#: A loop, how its integer begins and goes on, and whether that is known.
GOING = {
    "up by two": (going("(+ k 2)", "0"), lambda n, m: 0, lambda k, i, m: k + 2, True),
    "down": (going("(- k 1)", "(- n 1)"), lambda n, m: n - 1, lambda k, i, m: k - 1, True),
    "down to zero": (
        going("(max 0 (- k 1))", "m", "(max 0 (- k 1))"), lambda n, m: m, lambda k, i, m: max(0, k - 1), True,
    ),
    "down, until there is none": (
        going("(max 0 (- k 2))", "m"), lambda n, m: m, lambda k, i, m: max(0, k - 2), False,
    ),
    "the index before": (going("i", "-1", "(+ k 1)"), lambda n, m: -1, lambda k, i, m: i, True),
    "the index before, and another start": (going("i", "3"), lambda n, m: 3, lambda k, i, m: i, False),
    "what is left": (going("(- m i 1)", "m", "(- k 1)"), lambda n, m: m, lambda k, i, m: m - i - 1, True),
    "twice as much": (going("(* 2 k)", "1", "(% k n)"), lambda n, m: 1, lambda k, i, m: 2 * k, False),
}  # fmt: skip


def states(f: hyad.Model, *args: object) -> int:
    """How many integers loops go on with."""
    program = f.optimised(f.specs(args))
    return sum(a.type == INT for x in all_binds(program.body) if type(x.op) is Loop for a in x.op.accs)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", GOING)
def test_what_an_integer_is(name: str) -> None:
    text, start, step, known = GOING[name]
    f = hyad.model(text, namespace={})
    value = hyad.model("(fn [v m] (get (f v m) 0))", namespace={"f": f})
    gradient = hyad.grad(value, wrt=0)
    assert ("induction" in hyad.explain(f, args=(V, 3)).fired()) == known
    assert (states(f, V, 3) == 0) == known
    made, back = hyad.compile(f, args=(V, 3)), hyad.compile(gradient, args=(V, 3))
    apart = hyad.compile(gradient, args=(V, 3), without="induction")
    for m in (0, 1, 2, 3):
        k = start(len(V), m)
        for i in range(m):
            k = step(k, i, m)
        got = made(V, m)
        assert got[1] == k
        assert got[0] == pytest.approx(hyad.run(f, V, m)[0], rel=1e-15)
        np.testing.assert_allclose(back(V, m), apart(V, m), rtol=1e-15)
    assert hyad.check_grad(value, (V, 3))


def test_lengths_need_no_checks_and_no_arena() -> None:
    """Two arrays that get shorter: what the derivative remembers of them has a known size."""
    f = hyad.model(
        """(fn [#^ (Vec m) v #^ Real r]
          (let [s (ref v)  w (ref (map sin v))]
            (for [i (range (- m 1))]
              (set! s (* r (cut (deref s) 1 None)))
              (set! w (map (fn [a b] (+ (* a b) (sin a))) (cut (deref w) 1 None) (deref s))))
            (get (deref w) 0)))""",
        namespace={},
    )
    gradient = hyad.grad(f, wrt=("v", "r"))
    made = hyad.compile(gradient, args=(V, 0.9))
    assert not made.cfunction.arena
    assert hyad.compile(gradient, args=(V, 0.9), without="induction").cfunction.arena
    assert hyad.check_grad(f, (V, 0.9))
    for n in range(1, len(V)):
        got, want = made(V[:n], 0.9), hyad.run(gradient, V[:n], 0.9)
        for x, y in zip(got, want):
            np.testing.assert_allclose(x, y, rtol=1e-13)
