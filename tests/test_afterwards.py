"""What a loop adds to elements that it has done with, added after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import INT, LEAF, ONE, REAL, Arr, Block, Const, Loop, Node, Prim, Program, Var, all_binds, integer
from hyad.passes.afterwards import afterwards
from hyad.plain_python import python_callable
from hyad.program.builder import Builder
from hyad.program.check import check

#: Loops over ``w`` in place, its length n; whether they read elements that come later, and so their derivatives add to
#: such as are done with.
LOOPS = {
    "a tree": (
        "(for [k (range (- n 1) 0 -1)  i (range k)] (set-at! w i (* p (+ (get w i) (* p (get w (+ i 1)))))))", True,
    ),
    "two later ones": (
        """(for [k (range 3)  i (range (- n 2))]
             (set-at! w i (* p (+ (sin (get w i)) (* p (get w (+ i 1)) (get w (+ i 2)))))))""", True,
    ),
    "the other way": (
        "(for [k (range 3)  i (range (- n 1) 0 -1)] (set-at! w i (* p (max (get w i) (* 2 p (get w (- i 1)))))))", True,
    ),
    "exercised early": (
        """(for [k (range (- n 1) 0 -1)  i (range k)]
             (set-at! w i (max (* p (- (real i) 3.1)) (* p (+ (get w i) (get w (+ i 1)))))))""", True,
    ),
    "earlier ones": ("(for [k (range 3)  i (range 1 n)] (set-at! w i (* p (+ (get w i) (get w (- i 1))))))", False),
    "both sides": (
        """(for [k (range 3)  i (range 1 (- n 1))]
             (set-at! w i (* p (+ (get w i) (get w (- i 1)) (get w (+ i 1))))))""", False,
    ),
}  # fmt: skip


def model(name: str) -> Any:
    text = f"(fn [#^ Real p #^ (Vec n) v] (let [w (copy v)] {LOOPS[name][0]} (sum (square w))))"
    return hyad.model(text, namespace={})


def mixed(f: Any) -> int:
    """How many loops store elements of an array and add to others of it."""
    loops = [x.op for x in all_binds(f.program.body) if type(x.op) is Loop]
    names = [{x.op.name for x in loop.body.binds if type(x.op) is Prim} for loop in loops]
    return sum({"update", "add-at"} <= found for found in names)


@pytest.mark.some(6)
@pytest.mark.parametrize("name", LOOPS)
def test_derivatives_are_as_without(name: str) -> None:
    f = model(name)
    g = hyad.grad(f, wrt=("p", "v"))
    args = (0.4, np.ones(9))
    made, plain = (hyad.compile(g, args=args, target="python", without=w) for w in ((), "afterwards"))
    compiled = hyad.compile(g, args=args)
    assert (mixed(made) < mixed(plain)) == LOOPS[name][1]
    rng = np.random.default_rng(3)
    for n in (0, 1, 2, 3, 4, 9, 40):
        point = (0.4, rng.uniform(0.5, 1.5, n))
        one, two = made(*point), plain(*point)
        for other in (two, compiled(*point), hyad.run(g, *point)):
            np.testing.assert_allclose(one[0], other[0], rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(one[1], other[1], rtol=1e-12, atol=1e-13)
        assert hyad.check_grad(f, point, wrt=("p", "v"))


def test_rows_of_a_matrix() -> None:
    """The rows that an iteration of the outer loop changes lie beside each other; another row is read as well."""
    f = hyad.model(
        """(fn [u] (let [w (copy u) n (len u) m (len (get u 0))]
             (for [i (range 1 n)  j (range (- m 1))]
               (set-at! w i j (* (+ (get w i j) (get w i (+ j 1))) (+ 0.5 (get w (- i 1) j)))))
             (sum (square w))))""",
        namespace={},
    )
    g, rng = hyad.grad(f), np.random.default_rng(4)
    made, plain = (hyad.compile(g, args=(np.ones((5, 9)),), without=w) for w in ((), "afterwards"))
    assert made.cfunction.source.count("for (") == plain.cfunction.source.count("for (") + 1
    for shape in ((1, 1), (2, 2), (4, 9), (9, 3)):
        u = rng.uniform(0.1, 0.5, shape)
        np.testing.assert_allclose(made(u), plain(u), rtol=1e-12, atol=1e-13)
        assert hyad.check_grad(f, (u,))


def by_hand(both: bool) -> Program:
    """A loop that stores element m - i, and adds to the next one a number that it carries; ``both``: and hands on, in
    another state, the array as it is before it adds."""
    b = Builder()
    n = Var("n", INT)
    v = Var("v", Arr(REAL, (n,)))
    b.sizes.add(n)
    count = b.prim("-", n, integer(1))
    last = b.prim("-", n, integer(2))

    def body(i, a, s, *others):
        at = b.prim("-", last, i)
        t = b.get(a, at)
        stored = b.update(a, [at], b.prim("*", Const(0.5, REAL), t))
        after = b.add_at(stored, [b.prim("+", at, integer(1))], s)
        return [after, b.prim("sin", b.prim("+", s, t)), *([stored] if both else [])], ()

    out = b.loop(count, [v, ONE, *([v] if both else [])], body, ["a", "s", "c"][: 2 + both])
    made = Program("f", (v,), (n,), Block(b.block(), tuple(out)), (LEAF,), Node((LEAF,) * len(out)))
    check(made)
    return made


@pytest.mark.parametrize("both", [False, True])
def test_what_is_carried_and_what_is_handed_on(both: bool) -> None:
    program = by_hand(both)
    made = afterwards(program)
    assert (made is program) == both  # another state has the array before the addition: it cannot wait
    for n in (1, 2, 12):
        v = np.linspace(0.3, 1.4, n)
        for one, two in zip(python_callable(program)(v.copy()), python_callable(made)(v.copy())):
            np.testing.assert_allclose(one, two, rtol=1e-14)
