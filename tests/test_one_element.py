"""Rows of which one element is read: it alone is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import INT, REAL, Arr, Block, Const, Loop, Var, all_binds
from hyad.passes.one_element import Sums
from hyad.program.builder import Builder
from hyad.program.journal import without
from test_one_hot import depth

F = "(fn [z] (sum (log (+ 1.0 (square (@ a z))))))"
U = "(fn [z] (dot c (tanh (+ (@ a z) b))))"
#: A loss and a penalty, that is added to all elements of a row, or several.
P = "(fn [z] (+ (sum (log (+ 1.0 (square (@ a z))))) (* 0.5 (dot z z))))"
Q = "(fn [z] (+ (sum (square (- z 0.1))) (sum (tanh (@ a z))) (* 2 (sum (exp (* c (@ a z)))))))"
SHAPES = "#^ (Vec n) x #^ (Mat m n) a #^ (Vec m) b #^ (Vec m) c"
#: What is read of the rows, how deep the loops are, and what is expected.
ROWS = {
    "diagonal": (f"(diag ((hessian {F}) x))", f"((hessian {F}) x)", 2, np.diag),
    "trace": (f"(trace ((hessian {U}) x))", f"((hessian {U}) x)", 2, np.trace),
    "by hvp": (f"(build n (fn [k] (get (hvp {U} x (one-hot n k)) k)))", f"((hessian {U}) x)", 2, np.diag),
    "along the unit vectors": (
        f"(sum (build n (fn [k] ((D (D (fn [t] ({U} (+ x (* t (one-hot n k))))))) 0.0))))",
        f"((hessian {U}) x)",
        2,
        np.trace,
    ),
    "one coordinate": (
        f"(build n (fn [k] ((D (D (fn [t] ({U} (update x k t))))) (get x k))))", f"((hessian {U}) x)", 2, np.diag,
    ),
    "one coordinate of rows": (
        f"(map (fn [r] (sum (build n (fn [k] ((D (D (fn [t] ({U} (update r k t))))) (get r k)))))) a)",
        f"(map (fn [r] (trace ((hessian {U}) r))) a)", 3, lambda traces: traces,
    ),
    "an element of a gradient": (f"(get ((grad {U}) x) (- n 1))", f"((grad {U}) x)", 2, lambda g: g[-1]),
    "diagonal, a penalty": (f"(diag ((hessian {P}) x))", f"((hessian {P}) x)", 2, np.diag),
    "trace, three sums": (f"(trace ((hessian {Q}) x))", f"((hessian {Q}) x)", 2, np.trace),
    "beside the diagonal": (
        f"(let [h ((hessian {U}) x)] (build (- n 1) (fn [k] (get h k (+ k 1)))))",
        f"((hessian {U}) x)",
        2,
        lambda h: np.diag(h, 1),
    ),
}  # fmt: skip


def arguments(n: int, m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.uniform(-1.0, 1.0, s) for s in ((n,), (m, n), (m,), (m,))]


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ROWS)
def test_one_element_of_each_row(name: str) -> None:
    text, whole, loops, of = ROWS[name]
    f, g = (hyad.model(f"(fn [{SHAPES}] {t})", namespace={}) for t in (text, whole))
    assert depth(f.optimised(f.specs(arguments(5, 4))).body) == loops
    made = hyad.compile(f)
    for n, m in ((5, 4), (9, 17), (2, 1), (1, 3)):
        args = arguments(n, m)
        np.testing.assert_allclose(made(*args), of(hyad.run(g, *args)), 1e-11, 1e-12)


def test_without_it_whole_rows_are_made() -> None:
    f = hyad.model(f"(fn [{SHAPES}] {ROWS['trace'][0]})", namespace={})
    with without(["one-element"]):
        assert depth(f.optimised(f.specs(arguments(5, 4))).body) == 3


#: What stays an array: two of its elements are read, or one in each iteration of a loop; a sum of the user's own, whose
#: terms have an order; one that starts from other numbers; one that an iteration reads; a place found afterwards.
LEFT = {
    "two elements": "(let [s {sum}] (+ (get s 0) (get s 1)))",
    "all, one by one": "(let [s {sum}] (build n (fn [i] (get s i))))",
    "a place found afterwards": "(let [g {sum}] (get g (int (* 1.5 (exp (* 0.0 (get g (len b))))))))",
    "a sum that goes on": "(get ((grad (fn [z] (+ (dot b (sin (@ a z))) (dot c (cos (@ a (* z z))))))) x) 1)",
    "the user's own": """(get (ifold (fn [s i] (ifold (fn [s j] (update s j (+ (get s j) (* (get a i j) (get x j)))))
                                                    s n))
                               (zeros n) m) 1)""",
}


@pytest.mark.parametrize("name", LEFT)
def test_other_sums_stay_arrays(name: str) -> None:
    text = LEFT[name].replace("{sum}", f"((grad {U}) x)")
    f = hyad.model(f"(fn [{SHAPES}] {text})", namespace={})
    args = arguments(5, 4)
    program = f.optimised(f.specs(args))
    assert any(
        v.type.rank for x in all_binds(program.body) if type(x.op) is Loop for v in x.vars if type(v.type) is Arr
    )
    found, wanted = hyad.compile(f)(*args), hyad.run(f, *args)
    np.testing.assert_allclose(found, wanted, 1e-13)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))  # 0 and -0.0 is 0


IN_PLACE = {
    "one loop": """(jvp (fn [c] (let [w (copy x)]
        (for [k (range 3)] (for [i (range 1 n)] (set-at! w i (* c (get w (- i 1)))))) (get w (- n 1)))) 0.9 1.0)""",
    "one place": """(jvp (fn [c] (let [w (copy x)]
        (for [k (range 3)] (set-at! w 1 (* c (get w 0)))) (get w (- n 1)))) 0.9 1.0)""",
    "two loops": """(jvp (fn [c] (let [w (copy x)]
        (for [i (range n)] (for [k (range 2)] (for [q (range 2)]
          (set-at! w i (* c (dot (get a 0) w))) (set-at! w i (real k))))) (get w 0))) 0.9 1.0)""",
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_arrays_in_place_stay_arrays(name: str) -> None:
    """Of which one element is the result, and loops inside read others."""
    f = hyad.model(f"(fn [{SHAPES}] {IN_PLACE[name]})", namespace={})
    args = arguments(5, 4)
    np.testing.assert_allclose(hyad.compile(f)(*args), hyad.run(f, *args), 1e-13)


@pytest.mark.parametrize("soft, read, taken", [(True, False, True), (False, False, False), (True, True, False)])
def test_arrays_that_differentiation_adds_to_and_nothing_reads(soft: bool, read: bool, taken: bool) -> None:
    """Not the user's own additions, nor an array that is read as it was before something has been added to it."""
    b = Builder()
    n, x = Var("n", INT), Var("x", Arr(REAL, (Var("n", INT),)))

    def body(i: Any, acc: Any) -> Any:
        return [b.add_at(acc, (i,), b.get(x, i), soft=soft)], [b.get(acc, Const(0, INT))] if read else []

    out = b.loop(n, [b.zeros(Arr(REAL, (n,)))], body)
    element = b.get(out[0], Const(1, INT))
    assert bool(Sums(Block(b.block(), (element, *out[1:]))).found) == taken
