"""What is done for a GPU alone, by name: each is told of by ``explain``, can be switched off, and changes no result."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import CudaProgram
from hyad.emulate import Emulator
from hyad.errors import HyadError
from hyad.model import Model
from hyad.program.journal import without
from hyad.switches import ON_A_GPU

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
NEAREST = """[#^ (Mat k m) c #^ (Mat n m) x]
  (sum (map (fn [p] (amin (map (fn [q] (sum (map (fn [a b] (square (- a b))) p q))) c))) x))"""
LAYER = """[#^ (Mat m n) w #^ (Vec m) b #^ (Vec m) v #^ (Mat k n) x] (sum (map (fn [x]
  (square (dot v (map tanh (vec-add (mat-vec w x) b))))) x))"""
#: By name: a model in which it fires, the shapes of its arguments, and what it is differentiated by.
CASES: dict[str, tuple[str, tuple[Any, ...], Any]] = {
    "folded": ("[#^ (Mat n 3) x #^ (Mat m 3) y] (map (fn [p] (amin (map (fn [q] (sq-norm (- p q))) y))) x)",
               ((40, 3), (30, 3)), None),
    "courses": ("[#^ (Vec n) u #^ Int steps] (ifold (fn [u k] (map (fn [x] (* 0.5 (+ x (sin x)))) u)) u steps)",
                ((70,), 4), None),
    "elsewhere": ("[#^ (Mat n m) a] (ifold (fn [a i] (ifold (fn [a j] (update a (+ 1 i) j (- (get a (+ 1 i) j)"
                  " (* (get a 0 j) 0.5)))) a (shape a 1))) a (- (len a) 1))", ((9, 8),), None),
    "branch-inside": (NEAREST, ((5, 7), (40, 7)), "c"),
    "teams": ("[#^ (Mat n m) a] (map softmax a)", ((20, 40),), None),
    "stencils": ("[#^ (Vec n) x] (sum (map square (build (len x) (fn [i] (if (= i 0) (get x 0) (* (get x i)"
                 " (get x (- i 1))))))))", ((90,),), "x"),
    "apart": (LAYER, ((5, 4), (5,), (5,), (30, 4)), "w"),
    "elements": ("[#^ (Mat v d) e #^ (Arr Int n) at] (sum (map (fn [r] (sum (map sin r))) (gather e at)))",
                 ((9, 30), ("int", 40)), "e"),
    "sums-first": ("""[#^ (Mat n d) a #^ (Vec d) m #^ (Mat k d) q] (sum (map (fn [p] (sum (map sin (build (len q)
                   (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (- (get p c) (get m c))))) 0.0 (len p))))))) a))""",
                   ((40, 5), (5,), (3, 5)), "m"),
    "turned": ("[#^ (Mat n m) a] (sum (map sqrt (sum (* a a) 0)))", ((20, 6),), "a"),
    "gather": (LAYER, ((5, 4), (5,), (5,), (30, 4)), "w"),
    "rectangles": ("[#^ (Mat n n) a #^ (Vec n) v] (ifold (fn [a i] (ifold (fn [a j] (update a i j (- (get a i j)"
                   " (* (get v i) (get v j))))) a (+ i 1))) a (len v))", ((9, 9), (9,)), None),
    "batches": ("[#^ (Arr Real b t d) x #^ (Mat d h) w] (sum (map sin (ravel (@ x w))))", ((3, 4, 5), (5, 2)),
                ("x", "w")),
    "beside": ("[#^ (Vec n) x #^ (Vec m) y] (let [a (max x) b (sum (map exp y)) c (sum (map (fn [t] (* t a)) x))]"
               " #(a b c))", ((90,), (50,)), None),
    "vectors": ("[#^ (Vec n) x] (softmax x)", ((90,),), None),
    "from-nothing": ("[#^ (Vec n) x #^ (Vec n) y] (ifold (fn [s i] (+ s (get y i))) (sum x) (len y))",
                     ((90,), (90,)), None),
    "online": ("[#^ (Vec n) x] (softmax x)", ((90,),), None),
    "long-rows": ("[#^ (Mat n m) a] (map softmax a)", ((3, 17000),), None),
    "few-places": ("[#^ (Mat n m) a] (build (len (get a 0)) (fn [j] (ifold (fn [s i] (+ s (get a i j))) 0.0 (len a))))",
                   ((600, 5),), None),
    "copies": ("[#^ (Arr Int n) at #^ (Vec n) x #^ (Vec m) w] (scatter-add w at x)", (("int", 5000), (5000,), (2,)),
               None),
    "tiles": ("[#^ (Mat n m) a] (transpose a)", ((40, 37),), None),
    "staging": ("[#^ (Mat n 5) a] (map (fn [p] [(* (get p 0) (get p 1)) (sin (get p 3)) (get p 4) (get p 2)]) a)",
                ((90, 5),), None),
    "striding": ("[#^ (Mat n 3) x #^ Int m] (sum (map (fn [p] (ifold (fn [s k] (+ (* 0.9 (sin s)) (* (get p 1)"
                 " (get p 2)))) (get p 0) m)) x))", ((40, 3), 6), "x"),
    "directions": ("""[#^ (Vec 7) x #^ (Vec 60) w] (ifold (fn [acc b] (let [j (% b 3) s (update (fst acc) j (sin (+ (get
                   (fst acc) j) (get x b))))] #(s (update (snd acc) j (map (fn [y z] (+ (* (get s j) z) (* 0.5 y)))
                   (get (snd acc) j) w))))) #((build 3 (fn [i] 0.1)) (build [3 60] (fn [i k] 0.0))) 7)""",
                   ((7,), (60,)), None),
    "thread-order": ("""[#^ (Mat n d) x #^ (Mat k d) m #^ (Arr Real k d d) q] (build [n k] (fn [i j]
                     (ifold (fn [s r] (+ s (square (ifold (fn [t c] (+ t (sin (* (get q j r c)
                     (- (get x i c) (get m j c)))))) 0.0 d)))) 0.0 d)))""", ((9, 4), (3, 4), (3, 4, 4)), None),
    "ahead": ("[#^ (Vec n) x] (map (fn [a] (* a a)) x)", ((90,),), None),
    "persistent": ("[#^ (Vec n) u #^ Int steps] (ifold (fn [u k] (build (len u) (fn [i] (get u (% (+ i 1) (len u))))))"
                   " u steps)", ((70,), 4), None),
}  # fmt: skip


def model_of(name: str) -> Model:
    text, _, wrt = CASES[name]
    f = hyad.model(f"(defmodel f {text})", namespace={})
    return hyad.grad(f, wrt=wrt) if wrt else f


def arguments(name: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    return tuple(
        rng.integers(0, 2, s[1]) if isinstance(s, tuple) and s[0] == "int"
        else rng.uniform(0.5, 2.0, s) if isinstance(s, tuple) else s
        for s in CASES[name][1]
    )  # fmt: skip


def printed(name: str, off: tuple[str, ...], as_: str) -> CudaProgram:
    f = model_of(name)
    with without(off):
        return print_grid(f.optimised(f.specs(arguments(name)), "cuda", blas=True), name=as_)


@pytest.fixture(scope="module")
def programs() -> tuple[dict[str, tuple[CudaProgram, CudaProgram]], Emulator]:
    """Each model with and without what its name says."""
    made = {name: (printed(name, (), f"p{k}"), printed(name, (name,), f"q{k}")) for k, name in enumerate(CASES)}
    return made, Emulator([p for pair in made.values() for p in pair], gpu.cpu_compiler() or ())


def test_each_has_a_case() -> None:
    assert set(CASES) == set(ON_A_GPU) <= set(hyad.optimisations())


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CASES)
def test_switched_off_it_is_not_done_and_changes_no_result(name: str, programs: Any) -> None:
    with_, off = programs[0][name]
    texts = [re.sub(rf"\b{p.name}_", "f_", f"{p.source}{p.steps}") for p in (with_, off)]
    assert texts[0] != texts[1]
    args = arguments(name)
    wanted = memoised.results(model_of(name), args)
    for program in (with_, off):
        for descending in (False, True):
            for got, want in zip(programs[1].run(program, args, descending=descending), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11 * np.max(np.abs(want)))


@pytest.mark.parametrize("name", CASES)
def test_it_is_told(name: str) -> None:
    f, args = model_of(name), arguments(name)
    told = hyad.explain(f, args=args, target="cuda")
    assert name in told.fired() or name in [s.name for s in told.steps]
    assert "\non a GPU:\n" in str(told) and "on a GPU" not in str(hyad.explain(f, args=args))
    off = hyad.explain(f, args=args, target="cuda", without=name)
    assert name not in off.fired() and name not in [s.name for s in off.steps]


INNER = "(ifold (fn [s r] (+ s (square (ifold (fn [t c] (+ t (sin {}))) 0.0 d)))) 0.0 d)"
#: What each element of a nest of i and j is, and whether neighbours go along i.
ORDERS = [
    (INNER.format("(* (get q j r c) (- (get x i c) (get m j c)))"), True),
    (INNER.format("(* (get q j r c) (get x i c))"), False),  # the one or the other
    (INNER.format("(* (get w r j) (get w c j) (- (get x i c) (get m j c)))"), False),  # j's lie side by side
    (INNER.format("(* (get v j c j) (- (get x i c) (get m j c)))"), True),  # they do not
    (INNER.format("(* (real r) (get w c (+ j j)) (- (get x i c) (get m j c)))"), True),
    (INNER.format("(* (real r) (get w c (// j 2)) (- (get x i c) (get m j c)))"), True),
    ("(* (get m j i) (get w j i) (get q j i i))", False),  # once
    ("(ifold (fn [s c] (+ s (exp (- (get x i c) (get m j c) (get w j c))))) 0.0 d)", False),  # a team's
]


@pytest.mark.parametrize("form, along", ORDERS)
def test_neighbours_go_along_what_is_read_side_by_side(form: str, along: bool) -> None:
    arrays = "#^ (Mat n d) x #^ (Mat k d) m #^ (Mat k d) w #^ (Arr Real k d d) q #^ (Arr Real k d k) v"
    f = hyad.model(f"(defmodel f [{arrays}] (build [n k] (fn [i j] {form})))", namespace={})
    args = (np.ones((40, 40)), np.ones((40, 40)), np.ones((40, 40)), np.ones((40, 40, 40)), np.ones((40, 40, 40)))
    assert ("thread-order" in hyad.explain(f, args=args, target="cuda").fired()) is along


def test_there_is_no_such_target() -> None:
    with pytest.raises(HyadError, match="there is no target 'gpu'"):
        hyad.explain("(fn [x] x)", target="gpu")
