"""``(set-at! v (slice 1 -1) x)`` and ``(update v (slice 1 -1) x)``: NumPy's ``v[1:-1] = x``, and its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad

V = np.array([0.3, -1.2, 2.5, 0.7, 1.1])
M = np.arange(12.0).reshape(4, 3) ** 1.1

#: The subscripts, NumPy's, and the array.
PARTS: dict[str, tuple[Any, np.ndarray]] = {
    "(slice 1 -1)": (np.s_[1:-1], V),
    "(slice 2)": (np.s_[:2], V),
    "(slice None)": (np.s_[:], V),
    "(slice 3 1)": (np.s_[3:1], V),
    "(slice 0 4 2)": (np.s_[0:4:2], V),
    "(slice None None -1)": (np.s_[::-1], V),
    "(slice -2 None)": (np.s_[-2:], V),
    "#((slice 1 3) (slice 0 2))": (np.s_[1:3, 0:2], M),
    "(slice 1 3) (slice 0 2)": (np.s_[1:3, 0:2], M),
    "2 (slice 1 3)": (np.s_[2, 1:3], M),
    "#((slice None) 1)": (np.s_[:, 1], M),
    "#((slice -2 None) -1)": (np.s_[-2:, -1], M),
    "(slice 1 3)": (np.s_[1:3], M),
    "#(2 1)": (np.s_[2, 1], M),
    "2": (np.s_[2], M),
    "-1": (np.s_[-1], M.reshape(2, 2, 3)),
    "1 0": (np.s_[1, 0], M.reshape(2, 2, 3)),
}
FORMS = ("(fn [a x] (let [w (copy a)] (set-at! w {} x) w))", "(fn [a x] (update a {} x))")


def model(text: str) -> hyad.Model:
    return hyad.model(text, namespace={})


@pytest.mark.some(12)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_part_is_changed_as_in_numpy(part: str, form: str) -> None:
    at, a = PARTS[part]
    whole = np.sin(np.arange(1.0, a[at].size + 1)).reshape(a[at].shape)
    for x in [7.5, whole, *([whole[0]] if whole.ndim == 2 else [])]:
        wanted = a.copy()
        wanted[at] = x
        f = model(form.format(part))
        np.testing.assert_array_equal(hyad.run(f, a, x), wanted)
        for target in ("c", "python"):
            np.testing.assert_array_equal(hyad.compile(f, args=(a, x), target=target)(a, x), wanted)
        weighed = model(f"(fn [a x] (let [f {form.format(part)} r (f a x)] (sum (* r (square r)))))")
        assert hyad.check_grad(weighed, (a, x))


def test_a_row_in_several_places_is_in_each_its_own() -> None:
    f = model("(fn [a v] (let [w (update a 0 v)] (set-at! w 0 1 0 9.0) #(w v)))")
    a, v = M.reshape(2, 2, 3), np.array([1.0, 2.0, 3.0])
    wanted = a.copy()
    wanted[0] = v
    wanted[0, 1, 0] = 9.0
    for got in (hyad.run(f, a, v), hyad.compile(f, args=(a, v))(a, v)):
        np.testing.assert_array_equal(got[0], wanted)
        np.testing.assert_array_equal(got[1], v)


def test_what_is_read_was_there_before() -> None:
    """``v[1:] = v[:-1]`` moves all elements by one, and does not repeat the first."""
    f = model("(fn [a] (let [v (copy a)] (set-at! v (slice 1 None) (cut v 0 -1)) v))")
    wanted = np.concatenate([V[:1], V[:-1]])
    np.testing.assert_array_equal(hyad.run(f, V), wanted)
    np.testing.assert_array_equal(hyad.compile(f, args=[V])(V), wanted)


def test_names_of_the_user_are_the_user_s() -> None:
    f = model("(fn [rows i part first by] (let [w (copy rows)] (set-at! w (slice i None) (+ part (* first by))) w))")
    wanted = V.copy()
    wanted[2:] = np.array([1.0, 2.0, 3.0]) + 2.0 * 0.5
    for value in (
        hyad.run(f, V, 2, np.array([1.0, 2.0, 3.0]), 2.0, 0.5),
        hyad.compile(f, args=(V, 2, np.ones(3), 2.0, 0.5))(V, 2, np.array([1.0, 2.0, 3.0]), 2.0, 0.5),
    ):
        np.testing.assert_array_equal(value, wanted)


def test_a_heat_equation_by_slices() -> None:
    """Twenty steps of ``u[1:-1] += a*(u[2:] - 2*u[1:-1] + u[:-2])``."""
    f = model("""(fn [u0 a] (let [u (copy u0)]
      (for [t (range 20)]
        (set-at! u (slice 1 -1) (+ (cut u 1 -1) (* a (+ (cut u 2 None) (cut u 0 -2) (* -2 (cut u 1 -1)))))))
      (sum (square u))))""")
    u = V.copy()
    for _ in range(20):
        u[1:-1] = u[1:-1] + 0.2 * (u[2:] + u[:-2] - 2 * u[1:-1])
    np.testing.assert_allclose(hyad.compile(f, args=(V, 0.2))(V, 0.2), np.sum(u * u), rtol=1e-13)
    assert hyad.check_grad(f, (V, 0.2))


@pytest.mark.parametrize(
    ("text", "args", "error"),
    [
        ("(fn [v x] (update v (slice 1 3) x))", (V, np.ones(3)), "sizes"),
        ("(fn [v x] (update v (slice 1 9) x))", (V, 1.0), "outside|not in"),
        ("(fn [v x] (update v (slice 1 3) 2 x))", (V, 1.0), "get of a number"),
        ("(fn [v x] (let [w (copy v)] (set-at! w (slice 1 3) x) w))", (V, np.ones((2, 2))), "of a number"),
        ("(fn [m x] (update m 1 x))", (M, np.ones(4)), "different shapes|shape .4. where"),
        ("(fn [m x] (update m 1 x))", (M, np.ones((4, 3))), "where an array of shape"),
        ("(fn [m x] (update m 1 (> x 0)))", (M, 1.0), "puts a truth value"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, args: tuple, error: str) -> None:
    f = model(text)
    for go in (lambda: hyad.run(f, *args), lambda: hyad.compile(f, args=args)(*args)):
        with pytest.raises(hyad.HyadError, match=error) as caught:
            go()
        assert "^^^" in str(caught.value)


def test_bounds_are_one_to_three() -> None:
    with pytest.raises(hyad.HyadError, match="one to three bounds"):
        model("(fn [v] (update v (slice) 1.0))")
