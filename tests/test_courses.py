"""On a GPU, loops over time with loops over elements in them the other way round: run on the CPU in both orders of the
threads, with and without it; what stays as it is; rows that are put into arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import batch
import hyad
import memoised
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram, Launch, Repeat, walk
from hyad.emulate import Emulator
from hyad.model import Model
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None or batch.CC is None, reason="no C++ compiler")

PATHS = (
    "[#^ (Vec n) s #^ (Mat steps n) z v] (fold + 0.0 (map (fn [x] (max 0.0 (- x 1.0)))"
    " (fold (fn [s e] (map (fn [x e] (* x (exp (+ 0.01 (* v e))))) s e)) s z)))"
)
LAYERS = (  # a state by rows, changed row by row
    "[#^ (Vec n) x #^ (Mat l n) h #^ (Mat l n) w] (let [e (ifold (fn [p i] (let [x (fst p) h (snd p)"
    " y (map (fn [a b c] (tanh (+ (* a c) b))) x (get h i) (get w i))] #(y (update h i y)))) #(x h) (len w))]"
    " (+ (sum (fst e)) (sum (map sum (snd e)))))"
)
BODIES = (  # two states, one of rows of three; what an iteration computes once, and a sum over all bodies
    "[#^ (Mat n 3) x #^ (Mat n 3) v #^ (Vec steps) g] (let [e (fold (fn [p a] (let [x (fst p) v (fst (snd p)) k (* a a)"
    " w (map (fn [u q] (map (fn [s t] (- s (* k t))) u q)) v x)] #((map (fn [q u] (map (fn [s t] (+ s (* 0.1 t))) q u))"
    " x w) #(w (+ (snd (snd p)) (sum (map (fn [u] (dot u u)) w))))))) #(x #(v 0.0)) g)]"
    " (+ (snd (snd e)) (sum (map (fn [q] (get q 0)) (fst e)))))"
)
#: A model, its derivative, and the shapes of its arguments.
TURNED: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "paths": (PATHS, None, ((70,), (5, 70), 0.3)),
    "paths' gradient": (PATHS, hyad.value_and_grad, ((70,), (5, 70), 0.3)),
    "layers": (LAYERS, None, ((70,), (4, 70), (4, 70))),
    "layers' gradient": (LAYERS, hyad.grad, ((70,), (4, 70), (4, 70))),
    "bodies": (BODIES, None, ((70, 3), (70, 3), (6,))),
    "bodies' gradient": (BODIES, lambda f: hyad.grad(f, wrt=("x", "v")), ((70, 3), (70, 3), (6,))),
    "tangents": (PATHS, lambda f: hyad.D(f, wrt="v"), ((70,), (5, 70), 0.3)),
    "no steps": (PATHS, hyad.value_and_grad, ((70,), (0, 70), 0.3)),
    "no elements": (PATHS, hyad.value_and_grad, ((0,), (5, 0), 0.3)),
    "sums before": ("[#^ (Vec n) u #^ (Mat n k) a #^ (Vec k) b #^ Int s] (ifold (fn [u t] (map (fn [x row] (tanh (+ x"
                    " (dot row b)))) u a)) u s)", None, ((90,), (90, 70), (70,), 4)),
    "stacked": ("[#^ (Vec n) s #^ (Mat steps n) z] (scan (fn [s e] (map (fn [x e] (+ (sin x) e)) s e)) s z)", None,
                ((70,), (5, 70))),
}  # fmt: skip
#: What is not turned: an element needs another one's state, or all of them; a long sum for each element, which a team
#: of threads has; states that are too many for a thread; an old state that is read when it has been changed.
STAYS = {
    "neighbours": ("[#^ (Vec n) u #^ Int s] (ifold (fn [u t] (build (len u) (fn [i] (+ (get u i) (get u (max 0 (- i"
                   " 1))))))) u s)", ((90,), 4)),
    "all": ("[#^ (Vec n) u #^ Int s] (ifold (fn [u t] (let [m (sum u)] (map (fn [x] (- x (* 0.01 (sin m)))) u))) u s)",
            ((90,), 4)),
    "sums": ("[#^ (Vec n) u #^ (Mat n k) a #^ Int s] (ifold (fn [u t] (map (fn [x row] (tanh (fold (fn [s e] (+ s (* e"
             " x))) 0.0 row))) u a)) u s)", ((90,), (90, 70), 4)),
    "wide": ("[#^ (Mat n 200) u #^ Int s] (ifold (fn [u t] (map (fn [r] (map sin r)) u)) u s)", ((70, 200), 3)),
}  # fmt: skip


def arguments(shapes: tuple[Any, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.uniform(0.5, 1.5, s) if isinstance(s, tuple) else s for s in shapes]


@cache
def model(text: str, derived: Any) -> Model:
    f = hyad.model(f"(defmodel f {text})", namespace={})
    return f if derived is None else derived(f)


def printed(text: str, derived: Any, args: list[Any], off: tuple[str, ...] = (), **how: Any) -> CudaProgram:
    f = model(text, derived)
    with without(off):
        return print_grid(f.optimised(f.specs(args), "cuda", blas=True), **how)


def repeats(p: CudaProgram) -> int:
    return sum(isinstance(s, Repeat) for s in walk(p.steps))


def check(text: str, derived: Any, shapes: tuple[Any, ...], programs: list[CudaProgram]) -> None:
    """Each program gives what C does, in both orders of its threads."""
    args = arguments(shapes)
    wanted = memoised.results(model(text, derived), args)
    emulator = Emulator(programs, gpu.cpu_compiler() or ())
    for p in programs:
        for how in ({"blocks": 2, "block": 32}, {"blocks": 3, "block": 32, "descending": True}):
            for got, want in zip(emulator.run(p, args, **how), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", TURNED)
def test_each_element_has_its_own_course(name: str) -> None:
    text, derived, shapes = TURNED[name]
    args = arguments(shapes)
    plain, turned, fixed = (
        printed(text, derived, args, off, name=n, deterministic=n == "fixed")
        for off, n in ((("courses",), "plain"), ((), "turned"), ((), "fixed"))
    )
    assert repeats(plain) > 0 and repeats(turned) == repeats(fixed) == 0
    check(text, derived, shapes, [plain, turned, fixed])


@pytest.mark.some(6)
@pytest.mark.parametrize("name", STAYS)
def test_what_stays_as_it_is(name: str) -> None:
    text, shapes = STAYS[name]
    found = printed(text, None, arguments(shapes))
    assert repeats(found) == 1
    check(text, None, shapes, [found])


@pytest.mark.parametrize("body", ["(update a i (get x j))", "(update a i (get a j))"])
def test_rows_are_put_into_arrays_by_many_threads(body: str) -> None:
    text = f"[#^ (Mat m n) a #^ (Mat k n) x #^ Int i #^ Int j] {body}"
    shapes = ((4, 300), (3, 300), 1, 2)
    found = printed(text, None, arguments(shapes))
    assert all(s.block > 1 for s in walk(found.steps) if isinstance(s, Launch))
    check(text, None, shapes, [found])
