"""Scratch vectors that each iteration of a loop fills before it reads them are no part of its state."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import Arr, Loop

#: What each step does with ``c``, made before the loop, and ``v``, the state; whether c is the step's own (None: other
#: passes see it, too).
STEPS = {
    "an elimination and a substitution": (
        """(set-at! c 0 (* 0.1 (get v 0)))
           (for [i (range 1 n)] (set-at! c i (/ (get v i) (+ 4.0 (get c (- i 1))))))
           (for [i (range (- n 2) -1 -1)] (set-at! v i (- (get c i) (* 0.3 (get v (+ i 1))))))""",
        True,
    ),
    "from the end": (
        """(set-at! c (- n 1) (get v (- n 1)))
           (for [i (range (- n 2) -1 -1)] (set-at! c i (+ (get v i) (* 0.5 (get c (+ i 1))))))
           (for [i (range n)] (set-at! v i (sin (get c i))))""",
        True,
    ),
    "a part": (
        """(for [i (range 1 (- n 1))] (set-at! c i (- (* 0.5 (get v (- i 1))) (* 0.2 (get v (+ i 1))))))
           (for [i (range 1 (- n 1))] (set-at! v i (+ (get v i) (get c i))))""",
        True,
    ),
    "added to": (
        """(for [i (range n)] (set-at! c i (get v i)))
           (for [i (range 1 n)] (set-at! c i (+ (get c i) (* 0.3 (get c (- i 1))))))
           (for [i (range n)] (set-at! v i (sin (get c i))))""",
        None,
    ),
    "on both sides of a condition": (
        """(for [i (range n)] (if (> (get v i) 0.0) (set-at! c i (get v i)) (set-at! c i (* 0.5 (get v i)))))
           (for [i (range n)] (set-at! v i (sin (get c i))))""",
        None,
    ),
    "one more is read": (
        """(for [i (range 1 n)] (set-at! c i (* 0.5 (get v i))))
           (for [i (range n)] (set-at! v i (sin (+ (get c i) (get v i)))))""",
        False,
    ),
    "read before it is set": (
        """(for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (get c i))))
           (for [i (range n)] (set-at! c i (sin (get v i))))""",
        False,
    ),
    "the one after is read": (
        """(for [i (range (- n 1))] (set-at! c i (+ (get v i) (* 0.5 (get c (+ i 1))))))
           (for [i (range (- n 1))] (set-at! v i (sin (get c i))))""",
        False,
    ),
    "under a condition": (
        """(for [i (range n)] (when (> (get v i) 0.0) (set-at! c i (get v i))))
           (for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (sin (get c i)))))""",
        False,
    ),
    "all or nothing": (
        """(when (> (get v 0) 0.0) (for [i (range n)] (set-at! c i (get v i))))
           (for [i (range n)] (set-at! v i (+ (* -0.5 (get v i)) (sin (get c i)))))""",
        False,
    ),
    "one way or the other": (
        """(if (> (get v 0) 0.0)
             (for [i (range n)] (set-at! c i (get v i)))
             (for [i (range n)] (set-at! c i (* 0.5 (get v i)))))
           (for [i (range n)] (set-at! v i (+ (* -0.5 (get v i)) (sin (get c i)))))""",
        None,
    ),
    "the last ones": (
        """(for [i (range (// n 2) n)] (set-at! c i (get v i)))
           (for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (sin (get c i)))))""",
        False,
    ),
    "two parts": (
        """(set-at! c 0 (get v 0))
           (for [i (range (// n 2) n)] (set-at! c i (get v i)))
           (for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (sin (get c i)))))""",
        False,
    ),
    "the other end is read": (
        """(for [i (range n)] (set-at! c i (+ (get v i) (* 0.5 (get c (- n 1 i))))))
           (for [i (range n)] (set-at! v i (sin (get c i))))""",
        False,
    ),
    "two parts from the end": (
        """(set-at! c (- n 1) (get v 0))
           (for [i (range (- n 3) -1 -1)] (set-at! c i (get v i)))
           (for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (sin (get c i)))))""",
        False,
    ),
    "every second one from the end": (
        """(for [i (range (// n 2))] (set-at! c (- n 1 (* 2 i)) (get v i)))
           (for [i (range (// n 2))] (set-at! v i (+ (* 0.5 (get v i)) (sin (get c (- n 1 i))))))""",
        False,
    ),
    "at places that the data say": (
        """(for [i (range (- n 2))]
             (let [k (% (* i i) 3)]
               (set-at! c (+ k i) (get v i))
               (when (> i 0) (set-at! v i (+ (* 0.5 (get v i)) (sin (get c (+ k (- i 1)))))))))""",
        False,
    ),
    "every second one": (
        """(for [i (range (// n 2))] (set-at! c (* 2 i) (get v i)))
           (for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (sin (get c i)))))""",
        False,
    ),
    "one of them": (
        """(set-at! c 1 (get v 0))
           (for [i (range n)] (set-at! v i (+ (* 0.5 (get v i)) (* 0.1 (get c i)))))""",
        False,
    ),
}


def steps(name: str, result: str = "v") -> Any:
    text = f"""(fn [#^ (Vec n) x #^ Int m]
                 (let [v (copy x)  c (build n (fn [i] (* 0.25 i)))]
                   (for [t (range m)] {STEPS[name][0]})
                   {result}))"""
    return hyad.model(text, namespace={})


def states(f: Any) -> int:
    """How many vectors the loop over time carries."""
    outer = [x.op for x in f.program.body.binds if type(x.op) is Loop]
    inner = [op for op in outer if any(type(y.op) is Loop for y in op.body.binds)]
    return max(sum(isinstance(a.type, Arr) for a in op.accs) for op in inner)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", STEPS)
def test_scratch(name: str) -> None:
    """As the model is run; also where the scratch is wanted in the end, and in a gradient."""
    rng = np.random.default_rng(6)
    for result in ("v", "(+ v c)"):
        f = steps(name, result)
        total = hyad.model("(fn [x m] (sum (sin (f x m))))", namespace={"f": f})
        made = hyad.compile(f)
        gradient = hyad.compile(hyad.grad(total, wrt="x"), args=(np.ones(4), 3))
        for n, m in ((5, 3), (2, 1), (9, 2), (4, 0)):
            x = rng.normal(size=n)
            np.testing.assert_allclose(made(x, m), hyad.run(f, x, m), rtol=1e-13)
            run = hyad.run(hyad.grad(total, wrt="x"), x, m)
            assert oracle.mismatch(run, gradient(x, m), 1e-12) is None
        assert hyad.check_grad(total, (rng.normal(size=5), 3), wrt="x")


@pytest.mark.parametrize("name", [n for n in STEPS if STEPS[n][1] is not None])
def test_which_is_no_state(name: str) -> None:
    without = ["renew", "filled", "unchanged"]  # what makes no state of some of them, too
    made, plain = (hyad.compile(steps(name), without=[*without, *w]) for w in ((), ("privatise",)))
    assert states(plain) == 2 and states(made) == (1 if STEPS[name][1] else 2)
    assert states(hyad.compile(steps(name, "(+ v c)"), without=without)) == 2


def test_a_gradient_remembers_no_scratch() -> None:
    """One table, of the states; the scratch of a step is made again from the state."""
    total = hyad.model("(fn [x m] (sum (f x m)))", namespace={"f": steps("an elimination and a substitution")})
    made, plain = (
        hyad.compile(hyad.grad(total, wrt="x"), args=(np.ones(4), 3), without=w).source for w in ((), "privatise")
    )
    rooms = [s.split("room for")[1].split("reals")[0] for s in (made, plain)]
    numbers = [eval(re.sub(r"\(m > 0 \? m : 0\)", "m", r), {"n": 100, "m": 1000}) for r in rooms]
    assert numbers[0] < 1.2 * 100 * 1000 < 1.9 * 100 * 1000 < numbers[1]
