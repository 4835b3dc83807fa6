"""Mean programs of the whole language, ``data/whole.json``: run as they are read, and compiled as C and as Python,
each against the oracle's differences. ``"compiled": false`` marks those that can only be run: why must be said.
"""

from __future__ import annotations

import collections
import json
import types
from pathlib import Path
from typing import Any

import hy
import numpy as np
import pytest

import hyad
import memoised
import oracle

CASES = json.loads((Path(__file__).parent / "data" / "whole.json").read_text(encoding="utf-8"))


def given(case: dict[str, Any]) -> tuple[hyad.Model, tuple[Any, ...]]:
    """The model, its data types defined, and its arguments."""
    module = types.ModuleType("whole")
    names = module.__dict__
    for form in hy.read_many("(import hyad) (require hyad.macros [defmodel defdata])" + case.get("definitions", "")):
        hy.eval(form, names, module=module)
    array = np.array
    args = eval(case["args"], {**names, "array": array, "lisp": hyad.lisp, "inl": hyad.inl, "inr": hyad.inr})
    return hyad.model(case["program"], namespace=names), args


@pytest.mark.some(10)
@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_a_program(case: dict[str, Any]) -> None:
    model, args = given(case)
    expected = oracle.evaluate(case["program"], *args, definitions=case.get("definitions", ""))
    found = {"run": hyad.run(model, *args)}
    if case.get("compiled", True):
        found |= {target: hyad.compile(model, target=target, args=args)(*args) for target in ("c", "python")}
    else:
        with pytest.raises(hyad.HyadError) as caught:
            hyad.compile(model, args=args)
        assert type(caught.value).__name__ == "NotCompiled" and caught.value.span is not None
        with pytest.warns(UserWarning, match="runs as it is read"):
            found["called"] = model(*args)
    for how, value in found.items():
        wrong = oracle.mismatch(value, expected, 1e-9)
        assert wrong is None, f"{how}: {wrong}"


GROWN = """(defmodel grown [x #^ Int n]
  (letrec [f (fn [k] (if (= k 0) 1 (+ 1 (f (- k 1)))))] #((build (f n) (fn [i] (* i (* x x)))) x)))"""


def test_a_result_of_a_size_that_only_the_call_finds() -> None:
    """It comes back in a cell of the arena, whatever the derivative and the encoding."""
    f = hyad.model(GROWN, namespace={})
    rows = np.array([0.0, 1.0, 2.0, 3.0])
    for target in ("c", "python"):
        for n in (3, 0):
            found = memoised.compile(f, target=target, args=(2.0, n))(2.0, n)
            np.testing.assert_array_equal(found[0], 4.0 * rows[: n + 1])
            assert found[1] == 2.0
    slope = hyad.jacobian(f)(2.0, 3)
    np.testing.assert_array_equal(slope[0], 4.0 * rows)
    np.testing.assert_array_equal(hyad.jvp(f, (2.0, 3), (0.5, 0))[0], 2.0 * rows)
    for encoding in ("record", "closure", "continuation"):
        assert hyad.vjp(f, (2.0, 3), (rows, 1.0), encoding) == 57.0
    array = hyad.model("(fn [v] (cut v 0 (int (get v 0))))", namespace={})
    v = np.array([2.0, 5.0, 7.0])
    np.testing.assert_array_equal(array(v), v[:2])
    np.testing.assert_array_equal(hyad.jacobian(array)(v), np.eye(3)[:2])
    with pytest.raises(hyad.ModelTypeError, match="only known after the call"):
        array(v, out=np.zeros(2))


TRANSFORM = """(fn [v] (letrec [haar (fn [v]
  (let [n (len v)]
    (if (<= n 1) v
      (let [even (haar (cut v 0 None 2))  odd (haar (cut v 1 None 2))] (concat (+ even odd) (- even (* even odd)))))))]
  {}))"""


@pytest.mark.some(6)
@pytest.mark.parametrize("result", ["(haar v)", "(dot (sin (haar v)) v)", "(get (haar v) 0)", "#((haar v) (sum v))"])
def test_jacobians_through_arrays_whose_size_a_recursion_changes(result: str) -> None:
    """The sizes that meet in a recursion differ, and are no mistake in a Jacobian either."""
    f = hyad.model(TRANSFORM.format(result), namespace={})
    derivatives = [hyad.jacobian(f)]
    if "dot" in result:
        derivatives += [hyad.hessian(f), hyad.jacobian(hyad.grad(f))]
    for derivative in derivatives:
        for target in ("c", "python"):
            made = hyad.compile(derivative, target=target, args=(np.ones(8),))
            for n in (1, 4, 8):
                v = np.linspace(0.2, 0.9, n)
                wrong = oracle.mismatch(made(v), hyad.run(derivative, v), 1e-9)
                assert wrong is None, f"{target}: {wrong}"


RUN_ONLY = [  # what compiled code cannot give out; the form that is underlined
    ("(fn [x n] (fn [y] (* x y)))", "(fn [y] (* x y))"),
    ("(fn [x n] #(n (if (> x 0) sin cos)))", "#(n (if (> x 0) sin cos))"),
    ("(fn [x n] (build n (fn [i] (list i x))))", None),
    ("(fn [x n] [#(x 1) #(x 2)])", "[#(x 1) #(x 2)]"),
    ("(fn [x n] [(list x) (list x x)])", "[(list x) (list x x)]"),
    ("(fn [x n] (letrec [f (fn [k] (if (= k 0) nil (cons (fn [y] (* x y)) (f (- k 1)))))] (f n)))", None),
    ("(fn [x n] (letrec [f (fn [k] (if (= k 0) nil (cons x (f (- k 1)))))] (build 2 (fn [i] (f (+ n i))))))", None),
    ("(fn [x n] (letrec [f (fn [k] (if (= k 0) nil (cons (Point x k) (f (- k 1)))))] (f n)))", None),
]


@pytest.mark.parametrize("text, form", RUN_ONLY)
def test_what_compiled_code_cannot_give_is_run(text: str, form: str | None) -> None:
    args = (2.0, 3)
    if "Point" in text:  # a class of Python inside data that grows
        text = text.replace("[x n]", "[x n r]").replace("(Point x k)", "r")
        args = (2.0, 3, collections.namedtuple("Point", "x k")(1.0, 2.0))
    f = hyad.model(text, namespace={})
    with pytest.raises(hyad.NotCompiled) as caught:
        hyad.compile(f, args=args)
    assert caught.value.span is not None and caught.value.hint
    assert form is None or caught.value.span.text == form
    with pytest.warns(UserWarning, match="runs as it is read"):
        found = f(*args)
    wanted = hyad.run(f, *args)
    assert repr(found) == repr(wanted) or callable(found) and found(0.5) == wanted(0.5) == 1.0


def test_a_reference_does_not_leave_a_model() -> None:
    f = hyad.model("(fn [x] #(x (ref x)))", namespace={})
    for call in (f, lambda x: hyad.run(f, x)):
        with pytest.raises(hyad.ModelTypeError, match="a reference cannot leave the model"):
            call(1.0)
