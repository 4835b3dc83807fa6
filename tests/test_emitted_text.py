"""The emitted C as a person would read it: nothing in it that does nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad


def text_of(f: Any) -> str:
    """The C of a model, without its head."""
    source = hyad.compile(f).cfunction.source
    return source[source.index("/* ") :]


def code_of(f: Any) -> str:
    """The C of a model without comments, a space for all white space."""
    text = re.sub(r"//[^\n]*", "", text_of(f))
    return " ".join(text[text.index("*/") :].split())


@pytest.mark.parametrize("start, loops", [("0.0", 0), ("2.5", 0), ("-0.0", 1)])
def test_a_sum_of_nothing_is_its_start(start: str, loops: int) -> None:
    """Adding 0.0 changes -0.0 alone."""
    compiled = hyad.compile(hyad.model(f"(fn [#^ Int n] (ifold (fn [s i] (+ s 0.0)) {start} n))"))
    assert compiled.cfunction.source.count("for (") == loops
    for n in (0, 3):
        got, expected = compiled(n), float(start) + 0.0 if n else float(start)
        assert got == expected and np.signbit(got) == np.signbit(expected)


def test_pairs_in_a_triangle_add_nothing_for_the_others() -> None:
    f = hyad.model(
        "(fn [#^ (Vec n) x] (sum (build [(len x) (len x)] (fn [i j] (if (< i j) (* (get x i) (get x j)) 0.0)))))"
    )
    assert "+= 0.0" not in text_of(f)
    x = np.array([1.0, 2.0, 3.0, 5.0])
    assert np.isclose(hyad.compile(f)(x), (x.sum() ** 2 - x @ x) / 2, rtol=1e-15)


def test_a_full_matrix_is_not_copied_from_a_row() -> None:
    f = hyad.model("(fn [#^ (Vec n) x] (let [m (full [(len x) (len x)] 7.0)] (update m 0 x)))")
    assert code_of(f).count("memcpy") == 1 and "work" not in code_of(f)
    assert np.array_equal(hyad.compile(f)(np.array([1.0, 2.0])), [[1.0, 2.0], [7.0, 7.0]])


def test_an_element_is_not_set_to_itself() -> None:
    f = hyad.model("(fn [#^ (Vec n) x] (ifold (fn [x i] (update x i (get x i))) x (len x)))")
    assert "for (" not in code_of(f)
    past = hyad.model(
        "(fn [#^ (Vec n) x] (ifold (fn [x i] (let [a (get x i)] (update (update x (+ i 1) (* 2.0 a)) i a)))"
        " x (- (len x) 1)))"
    )
    assert len(re.findall(r"\] = ", code_of(past))) == 1
    assert np.array_equal(hyad.compile(past)(np.array([1.0, 5.0, 7.0])), [1.0, 2.0, 4.0])


def test_twos_and_halves_of_derivatives_cancel() -> None:
    """A half that a user wrote before a square: the derivative has neither."""
    f = hyad.model(
        "(fn [#^ (Vec n) x #^ (Vec n) y] (* 0.5 (ifold (fn [s i] (+ s (** (- (get x i) (get y i)) 2))) 0.0 (len x))))"
    )
    code = code_of(hyad.grad(f, wrt="x"))
    assert "0.5" not in code and "2.0" not in code
    x, y = np.array([1.0, 2.5]), np.array([0.25, -1.0])
    assert np.array_equal(hyad.compile(hyad.grad(f, wrt="x"))(x, y), x - y)
