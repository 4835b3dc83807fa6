"""Sums that are longer or shorter from iteration to iteration, four side by side: values to the last bit, derivatives
against sums in NumPy, and what has to stay as it is."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised

V = np.random.default_rng(5).normal(size=23)
#: One of the sums below would be done once for all.
OFF = (("growing-sums", "prefixes"), ("growing-sums", "prefixes", "jam"))
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 12, 23]
SUMS = {
    "shorter": "(sum (slice v i n))",
    "longer": "(sum (slice v 0 (+ i 1)))",
    "none yet": "(ifold (fn [s j] (+ (* 0.5 s) (get v j))) 0.25 (- i 5))",
}


def steps(f: hyad.Model) -> list[str]:
    return [step.name for step in hyad.explain(f, args=(V,)).steps]


def model(text: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Vec n) v] {text})", namespace={})


@pytest.mark.parametrize("text", SUMS.values(), ids=SUMS)
def test_values_are_the_same_to_the_last_bit(text: str) -> None:
    f = model(f"(build n (fn [i] (exp {text})))")
    assert "n/4" in hyad.compile(f, args=(V,), without=OFF[0]).source
    for target in ("c", "python"):
        made, plain, rows = (hyad.compile(f, args=(V,), target=target, without=w) for w in (*OFF, "prefixes"))
        for n in SIZES:
            np.testing.assert_array_equal(made(V[:n]), plain(V[:n]))
            np.testing.assert_allclose(rows(V[:n]), plain(V[:n]), rtol=0 if target == "python" else 1e-14)


@pytest.mark.parametrize("text", SUMS.values(), ids=SUMS)
def test_derivatives(text: str) -> None:
    g = hyad.grad(model(f"(sum (build n (fn [i] (* (get v i) (exp {text})))))"), wrt="v")
    made, plain = (hyad.compile(g, args=(V,), without=w) for w in OFF)
    for n in SIZES:
        v, step = V[:n], 1e-30
        ends = {"shorter": (np.arange(n), [n] * n), "longer": ([0] * n, np.arange(n) + 1)}
        np.testing.assert_allclose(made(v), plain(v), rtol=1e-12, atol=1e-13)
        for name, (low, high) in ends.items():
            if SUMS[name] == text:
                want = np.zeros(n)
                for k in range(n):
                    z = v.astype(complex)
                    z[k] += 1j * step
                    want[k] = sum(z[i] * np.exp(z[low[i] : high[i]].sum()) for i in range(n)).imag / step
                np.testing.assert_allclose(made(v), want, rtol=1e-12, atol=1e-13)


def test_what_an_iteration_adds_at_its_index_does_not_keep_its_sum_alone() -> None:
    """Cox's likelihood: four sums over who is at risk go side by side in the gradient as well."""
    f = model("(sum (build n (fn [i] (- (get v i) (log (sum (exp (slice v i n))))))))")
    g = hyad.grad(f, wrt="v")
    assert hyad.compile(g, args=(V,), without=("growing-sums", "suffix-sums")).source.count("acc3 +=") == 1
    for n in SIZES:
        e = np.exp(V[:n])
        risk = np.cumsum(e[::-1])[::-1]
        for off in ((), "suffix-sums"):
            made = memoised.compile(g, args=(V,), without=off)
            np.testing.assert_allclose(made(V[:n]), 1 - e * np.cumsum(1 / risk), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "(build n (fn [i] (exp (ifold (fn [s j] (+ s (* (get v i) (real j)))) 0.0 (* 3 i)))))",  # much is left of three
        "(build n (fn [i] (exp (ifold (fn [s j] (+ s (* (get v i) (real j)))) 0.0 (// i 2)))))",  # nobody knows
        "(snd (ifold (fn [#(k s) i] #((max k (min i 4)) (+ s (* (get v i) (ifold (fn [r j] (+ r (* (get v i)"
        " (real j)))) 0.0 k))))) #(1 0.0) n))",  # the iteration before says how long
    ],
)
def test_what_stays_as_it_is(text: str) -> None:
    f = model(text)
    made, plain = (hyad.compile(f, args=(V,), without=w) for w in ((), "jam"))
    for n in SIZES:
        np.testing.assert_array_equal(made(V[:n]), plain(V[:n]))
    assert "jam" not in steps(f)


def test_four_sums_of_many_numbers_go_side_by_side() -> None:
    """As those of a gate of a recurrent network do, beside what it makes of them."""
    terms = " ".join(f"(sin (* (+ {k}.5 (get v i)) (dot (get m {k} i) v)))" for k in range(4))
    f = hyad.model(f"(fn [#^ (Arr Real 4 n n) m #^ (Vec n) v] (build n (fn [i] (+ {terms}))))", namespace={})
    made = hyad.compile(f, args=(np.ones((4, 9, 9)), np.ones(9)))
    assert "n/4" in made.source
    for n in SIZES:
        m, v = np.random.default_rng(6).normal(size=(4, n, n)), V[:n]
        np.testing.assert_allclose(made(m, v), sum(np.sin((k + 0.5 + v) * (m[k] @ v)) for k in range(4)), rtol=1e-11)
