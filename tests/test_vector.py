"""``math="vector"``: exp, expm1 and tanh in C that vectorises, within the errors that they state."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.codegen.vector import KERNELS
from hyad.errors import ModelTypeError

SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    709.7,
    709.8,
    720.0,
    1e300,
    -1e300,
    5e-324,
    -708.5,
    -744.0,
    -745.2,
    -800.0,
]
POINTS = {
    "exp": (1, [(-1, 1), (-40, 40), (-708, 709.7), (-745, -708)]),
    "expm1": (3, [(-1e-5, 1e-5), (-1, 1), (-50, 50), (0, 709.7)]),
    "tanh": (3, [(-1e-7, 1e-7), (-1, 1), (-25, 25)]),
}


def exactly(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return getattr(np, name)(x.astype(np.longdouble))


@pytest.mark.parametrize("name", KERNELS)
def test_errors_are_those_stated(name: str) -> None:
    f = hyad.compile(hyad.model(f"(fn [#^ (Vec n) x] (map (fn [a] ({name} a)) x))"), math="vector")
    assert f"hyad_{name}(x[i])" in f.source and f"unit{'s' * (POINTS[name][0] > 1)} in the last place" in f.source
    most, ranges = POINTS[name]
    assert f"at most {most} unit" in KERNELS[name][-1]
    for low, high in ranges:
        x = np.random.default_rng(3).uniform(low, high, 100_000)
        expected = exactly(name, x)
        rounded = expected.astype(float)
        error = np.abs(f(x) - expected) / np.spacing(np.abs(rounded))
        assert error.max() < most + 0.05, (low, high, x[error.argmax()])


@pytest.mark.parametrize("name", KERNELS)
def test_ends_of_the_range(name: str) -> None:
    f = hyad.compile(hyad.model(f"(fn [#^ (Vec n) x] (map (fn [a] ({name} a)) x))"), math="vector")
    x = np.array(SPECIAL)
    with np.errstate(over="ignore"):  # what is too large for a double is infinite
        found, expected = f(x), exactly(name, x).astype(float)
    np.testing.assert_array_max_ulp(found[~np.isnan(x)], expected[~np.isnan(x)], 3)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    np.testing.assert_array_equal(np.signbit(found[:2]), np.signbit(expected[:2]))


def test_what_is_made_of_them() -> None:
    text = "(fn [#^ (Vec n) v] (fold (fn [s a] (+ s (sigmoid a) (* a (tanh a)))) 0.0 v))"
    f, v = hyad.model(text), np.linspace(-3, 3, 11)
    own = hyad.compile(hyad.grad(f), math="vector")
    assert "hyad_sigmoid" in own.source and " exp(" not in own.source
    np.testing.assert_allclose(own(v), hyad.grad(f)(v), rtol=1e-14)


def test_functions_that_recur_have_it_too() -> None:
    f = hyad.model(
        "(fn [#^ Real x #^ Int n] (letrec [go (fn [y k] (if (= k 0) y (+ (exp y) (go (/ y 2) (- k 1)))))] (go x n)))"
    )
    own = hyad.compile(f, math="vector")
    assert "hyad_exp(" in own.source
    assert own(1.0, 5) == pytest.approx(f(1.0, 5), rel=1e-14)


@pytest.mark.parametrize(
    "options", [{"math": "wild"}, {"math": "vector", "dtype": "f32"}, {"math": "vector", "target": "python"}]
)
def test_where_there_is_none(options: dict) -> None:
    with pytest.raises(ModelTypeError):
        hyad.compile(hyad.model("(fn [x] (exp x))"), **options)


def test_emitted(tmp_path) -> None:
    source, _ = hyad.emit(hyad.model("(fn [#^ Real x] (exp x))"), tmp_path / "f.c", math="vector")
    assert "hyad_exp(x)" in source.read_text()
