"""States of which less and less is read: what lies behind that is not filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Loop, all_binds

TREE = """(fn [#^ (Vec n) v #^ Real p] (let [n (len v)]
  (get (ifold (fn [v t] (build n (fn [i] (if (< i (- n (+ t 1))) STEP FILL)))) v COUNT) LOOK)))"""
STEP = "(+ (* p (get v i)) (* (- 1.0 p) (sin (get v (+ i 1)))))"

#: The step, what fills the rest, how many steps, what is looked at, and whether nothing reads the rest.
TREES = {
    "a tree": (STEP, "0.0", "(- n 1)", "0", True),
    "filled with what is read": (STEP, "(get v i)", "(- n 1)", "0", False),
    "a reading further on": (STEP.replace("(+ i 1)", "(min (+ i 2) (- n 1))"), "0.0", "(- n 1)", "0", False),
    "the rest is looked at": (STEP, "0.5", "(- n 1)", "(- n 1)", False),
    "a look in the middle": (STEP, "0.5", "(- n 1)", "(// n 2)", False),
    "read from the end": (STEP.replace("(get v i)", "(get v (- n 1 i))"), "0.5", "(- n 1)", "0", False),
    "the first that is filled is looked at": (STEP, "0.5", "(- n 1)", "1", False),
    "fewer steps": (STEP, "0.5", "(- n 3)", "0", True),
}


def tree(name: str) -> hyad.Model:
    step, fill, count, look, _ = TREES[name]
    text = TREE.replace("STEP", step).replace("FILL", fill).replace("COUNT", count).replace("LOOK", look)
    return hyad.model(text, namespace={})


def by_hand(name: str, v: np.ndarray, p: float) -> float:
    _, fill, count, look, _ = TREES[name]
    n = len(v)
    far = 2 if name == "a reading further on" else 1
    for t in range({"(- n 1)": n - 1, "(- n 3)": n - 3}[count]):
        k = n - (t + 1)
        near = v[::-1] if name == "read from the end" else v
        made = [p * near[i] + (1 - p) * np.sin(v[min(i + far, n - 1)]) for i in range(k)]
        v = np.array([*made, *(v[k:] if fill == "(get v i)" else [float(fill)] * (n - k))])
    return float(v[{"0": 0, "1": 1, "(- n 1)": n - 1, "(// n 2)": n // 2}[look]])


def loops(f: Any) -> int:
    return sum(type(x.op) is Loop for x in all_binds(f.program.body))


@pytest.mark.some(6)
@pytest.mark.parametrize("name", TREES)
def test_what_is_left_of_a_tree(name: str) -> None:
    f, args = tree(name), (np.linspace(0.2, 1.4, 9), 0.3)
    fired = "unread" in {step.name for step in hyad.explain(f, args=args).steps}
    assert fired == TREES[name][-1]
    for target in ("python", "c"):
        made, plain = (hyad.compile(f, args=args, target=target, without=w) for w in ((), "unread"))
        assert (loops(made) < loops(plain)) == fired
        for n in (4, 5, 9, 20):
            v = np.random.default_rng(n).uniform(0.2, 1.4, n)
            assert made(v, 0.3) == pytest.approx(by_hand(name, v, 0.3), rel=1e-13)
            assert made(v, 0.3) == plain(v, 0.3)
    assert hyad.check_grad(f, list(args))


@pytest.mark.parametrize("far, nothing", [(1, True), (2, False)])
def test_the_first_of_the_rest_is_filled_where_it_is_read(far: int, nothing: bool) -> None:
    """The next step goes as far as the element before it, or as that element itself."""
    step = STEP.replace("(+ i 1)", f"(+ i {far})")
    text = TREE.replace("(+ t 1)", "(+ t 2)").replace("STEP", step).replace("FILL", "0.5").replace("COUNT", "(- n 2)")
    f, v = hyad.model(text.replace("LOOK", "0"), namespace={}), np.linspace(0.2, 1.4, 9)
    assert ("unread" in {s.name for s in hyad.explain(f, args=(v, 0.3)).steps}) == nothing
    found, n = hyad.compile(f, args=(v, 0.3))(v, 0.3), len(v)
    for t in range(n - 2):
        v = np.array([0.3 * v[i] + 0.7 * np.sin(v[i + far]) if i < n - (t + 2) else 0.5 for i in range(n)])
    assert found == pytest.approx(v[0], rel=1e-13)


FILL = "(ifold (fn [a i] (update a (+ i 3) 0.5)) V (- n 3))"
CHANGED = "(update v 0 (sin (get v 1)))"
TWO = f"""(let [q (ifold (fn [#(v s) t] (let [p INNER] #({FILL.replace("V", "(fst p)")} (+ s (get (snd p) 5)))))
    #(v 0.0) 4)]
  (+ (get (fst q) 0) (snd q)))"""
SUM = "(update v 0 (ifold (fn [s j] (+ s (* (get v AT) (get w j)))) 0.0 3))"

#: Loops that fill, each over time, and whether what they fill is left.
FILLS = {
    "an element that is not filled": (f"(get (ifold (fn [v t] {FILL.replace('V', CHANGED)}) v 4) 0)", True),
    "read by a loop": (f"(get (ifold (fn [v t] {FILL.replace('V', SUM.replace('AT', 'j'))}) v 4) 0)", True),
    "read by a loop that goes further": (
        f"(get (ifold (fn [v t] {FILL.replace('V', SUM.replace('AT', '(+ j 1)'))}) v 4) 0)",
        False,
    ),
    "read where it is filled": (
        FILL.replace(
            "V", f"(ifold (fn [v t] {FILL.replace('V', CHANGED).replace('0.5', '(sin (get a (+ i 3)))')}) v 4)"
        ),
        False,
    ),
    "all of it is used": (f"(sum (ifold (fn [v t] {FILL.replace('V', CHANGED)}) v 4))", False),
    "fewer and fewer are filled": (
        """(get (ifold (fn [v t] (ifold (fn [a i] (update a (+ i t 2) 0.5)) (update v t (sin (get v t))) (- n t 2)))
             v 3) 2)""",
        False,
    ),
    "another array": (
        f"(get (ifold (fn [v t] {FILL.replace('V', 'v').replace('update a', 'update w')}) v 4) 0)",
        False,
    ),
    "in any order": (
        f"(get (ifold (fn [v t] {FILL.replace('V', CHANGED).replace('(+ i 3)', '(get k i)')}) v 4) 0)",
        False,
    ),
    "downwards": (
        "(get (ifold (fn [v t] (ifold (fn [a i] (update a (- 5 i) 0.5)) (update v 0 (sin (get v 4))) p)) v 4) 0)",
        False,
    ),
    "looked at where it is not known": (f"(get (ifold (fn [v t] {FILL.replace('V', CHANGED)}) v 4) (get k 1))", False),
    "looked at from the end": (f"(get (ifold (fn [v t] {FILL.replace('V', CHANGED)}) v 4) 3)", False),
    "the state before is handed on": (
        f"""(let [q (ifold (fn [#(v u) t] #({FILL.replace("V", CHANGED)} v)) #(v w) 4)]
          (+ (get (fst q) 0) (get (snd q) 5)))""",
        False,
    ),
    "the state is handed on before it is filled": (
        f"""(let [q (ifold (fn [#(v u) t] (let [c {CHANGED}] #({FILL.replace("V", "c")} c))) #(v w) 4)]
          (+ (get (fst q) 0) (get (snd q) 5)))""",
        False,
    ),
    "a loop hands it on": (TWO.replace("INNER", "(ifold (fn [#(a b) i] #((update a 0 (get a 1)) a)) #(v w) 2)"), False),
    "a loop makes two of it": (
        TWO.replace("INNER", "(ifold (fn [#(a b) i] (let [c (update a 0 (get a 1))] #(c c))) #(v w) 2)"),
        False,
    ),
    "the loop that fills goes on with it": (
        """(let [q (ifold (fn [#(v s) t]
              (let [p (ifold (fn [#(a b) i] #((update a (+ i 3) 0.5) (update b 0 (get b 5)))) #(v v) (- n 3))]
                #((fst p) (+ s (get (snd p) 0))))) #(v 0.0) 4)]
          (+ (get (fst q) 0) (snd q)))""",
        False,
    ),
}


@pytest.mark.parametrize("name", FILLS)
def test_a_loop_that_fills(name: str) -> None:
    text, nothing = FILLS[name]
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w #^ (Arr Int n) k #^ Int p] (let [n (len v)] {text}))", namespace={})
    point = np.linspace(0.2, 0.9, 9), np.linspace(1.2, 0.6, 9), np.array([0, 3, 1, 0, 2, 5, 4, 3, 2]), 4
    assert ("unread" in {s.name for s in hyad.explain(f, args=point).steps}) == nothing
    for target in ("python", "c"):
        np.testing.assert_allclose(hyad.compile(f, args=point, target=target)(*point), hyad.run(f, *point), rtol=1e-13)
