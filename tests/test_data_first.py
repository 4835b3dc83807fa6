"""Hessians of losses: functions of a sample are called once, not once for each column."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import INT, REAL, Arr, Atom, Block, If, Leaf, Loop, Program, Var, all_binds, integer
from hyad.passes.data_first import outside
from hyad.plain_python import python_callable
from hyad.program.builder import Builder

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
    "twice in a sample": (
        """(fn [#^ (Vec d) u #^ (Mat n d) x]
          (let [s (ref 0.0)]
            (for [row x]
              (set! s (+ (deref s) (* (tanh (dot row u)) (+ 1.0 (sum (map (fn [r p] (* r p p p)) row u)))
                                      (exp (get u 0))))))
            (deref s)))""",
        "u x",
    ),
    "with the sample before": (
        """(fn [#^ (Vec d) u #^ (Mat n d) x]
          (let [z (tanh (@ x u))]
            (+ (sum (* z z)) (ifold (fn [s i] (+ s (* (exp (get z i)) (get z (max 0 (- i 1)))))) 0.0 n))))""",
        "u x",
    ),
    "a state that decays": (
        """(fn [#^ (Vec d) u #^ (Mat n d) x]
          (let [m (fold (fn [s row] (+ (* 0.9 s) (map (fn [r p] (tanh (* r p))) row u))) (zeros d) x)]
            (sum (map (fn [a] (exp a)) m))))""",
        "u x",
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


@pytest.mark.some(10)
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


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["softmax, by for", "softmax, by arrays", "a layer"])
def test_no_call_is_made_for_each_direction(name: str) -> None:
    """The others' samples have tables of what is called, or call something else for each row."""
    h, args = hessian(name), arguments(LOSSES[name][1], 2, 5, 6)
    program = h.optimised(h.specs(args))
    assert not deepest(program.body) and deepest(h.without(["data-first", "expand"]).optimised(h.specs(args)).body)
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


def handmade(kind: str) -> Program:
    """A loop over directions with a fold over data inside, whose body is of one ``kind``."""
    n, d = Var("n", INT), Var("d", INT)
    x = Var("x", Arr(REAL, (n,)))
    b = Builder()
    b.sizes.update((n, d))

    def direction(j: Atom) -> tuple[tuple, tuple]:
        start = b.zeros(Arr(REAL, (d,)))
        rows = b.build(n, lambda i: b.prim("*", b.get(x, i), b.to_real(j))) if "row" in kind else None

        def sample(i: Atom, acc: Atom) -> tuple[list[Atom], tuple]:
            e = b.prim("exp", b.get(x, i))
            t = b.prim("*", e, b.to_real(j))
            if rows is not None:
                at = integer(0) if kind == "another row" else i
                t = b.prim("+", t, b.get(rows, at))

            def add(k: Atom, inner: Atom) -> tuple[list[Atom], tuple]:
                return [b.add_at(inner, (k,), b.prim("*", t, b.to_real(k)))], ()

            (acc,) = b.loop(d, [acc], add)
            if kind == "no sum":
                return [b.build(d, lambda k: b.prim("sin", b.get(acc, k)))], ()
            return [b.add_at(acc, (j,), e)], ()

        (row,) = b.loop(n, [start], sample)
        return (), (b.get(row, j) if kind == "one of a row" else row,)

    out = b.loop(d, (), direction, soft=True)
    return Program("f", (x, d), (n,), Block(b.block(), tuple(out)), (Leaf(), Leaf()), Leaf())


@pytest.mark.parametrize(
    "kind, taken",
    [("sums", True), ("its own row", True), ("another row", False), ("no sum", False), ("one of a row", False)],
)
def test_which_folds_go_outside(kind: str, taken: bool) -> None:
    program = handmade(kind)
    made = outside(program)
    assert (made is not program) == taken
    x = np.array([0.3, -0.2, 0.7])
    for n in (0, 1, 3):
        got, want = (python_callable(p)(x[:n], 4) for p in (made, program))
        np.testing.assert_allclose(got, want, rtol=1e-14)
