"""What errors say of NumPy's functions and options is code that works: it gives what NumPy and SciPy give, compiled and
define by run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.special
import scipy.stats

import hyad
from hyad.errors import DerivativeError, UnboundError
from hyad.program.advice import _INSIDE, _NORMS, _OPTIONS, ELSEWHERE, as_hint, instead, option_hint

U, V, W = np.array([3.0, -1.0, 2.0, 5.0, 4.0]), np.array([1.0, 2.0, 4.0]), np.array([0.5, -2.0])
X, Y = np.array([0.0, 0.3, 1.5, 4.0]), np.array([2.0, 0.5, 1.0, 3.0])
S = np.array([-2.5, 0.0, 0.7])
M = np.array([[1.0, -2.0, 0.5], [3.0, 4.0, -1.0]])
K = np.array([2, 0, 2])
SQUARE = np.array([[1.0, 0.5], [-0.3, 0.8]])
BANDS = np.array([[0.0, 1.0, -0.5, 0.3, 2.0], [4.0, 5.0, 3.0, 4.5, 6.0], [0.5, -1.0, 0.2, 1.5, 0.0]])

#: A hint, which of its forms, what its names are (a text stands for itself), and what the form gives.
ROWS: list[tuple[str, int, dict[str, Any], Any]] = [
    (ELSEWHERE["gradient"], 0, {"v": U}, np.gradient(U)),
    (ELSEWHERE["add.at"], 0, {"v": V, "k": K, "x": S}, [1.0 + 0.0, 2.0, 4.0 - 2.5 + 0.7]),
    (ELSEWHERE["bincount"], 0, {"n": 4, "k": K}, np.bincount(K, minlength=4)),
    (ELSEWHERE["subtract.outer"], 0, {"u": U, "v": V}, np.subtract.outer(U, V)),
    (ELSEWHERE["add.outer"], 0, {"u": U, "v": V}, np.add.outer(U, V)),
    (ELSEWHERE["multiply.outer"], 0, {"u": U, "v": V}, np.multiply.outer(U, V)),
    (ELSEWHERE["divide.outer"], 0, {"u": U, "v": V}, np.divide.outer(U, V)),
    *((ELSEWHERE[f"{f}.reduce"], 0, {"a": M}, getattr(np, f).reduce(M))
      for f in ("add", "multiply", "maximum", "minimum")),
    *((ELSEWHERE[f"{f}.accumulate"], 0, {"a": M}, getattr(np, f).accumulate(M)) for f in ("add", "multiply")),
    (ELSEWHERE["apply-along-axis"], 0, {"f": "sum", "a": M, "axis": "0"}, np.apply_along_axis(np.sum, 0, M)),
    (ELSEWHERE["broadcast-to"], 0, {"a": V, "n": 2, "m": 3}, np.broadcast_to(V, (2, 3))),
    (ELSEWHERE["sinc"], 0, {"x": X}, np.sinc(X)),
    (ELSEWHERE["nan-to-num"], 0, {"x": np.array([np.nan, 1.0])}, [0.0, 1.0]),
    (ELSEWHERE["split"], 0, {"v": X, "n": 2}, np.split(X, 2)),
    (ELSEWHERE["split"], 1, {"v": X, "start": 2, "stop": 4}, np.split(X, 2)[1]),
    (ELSEWHERE["vsplit"], 0, {"m": M, "start": 1, "stop": 2}, np.vsplit(M, 2)[1]),
    (ELSEWHERE["hsplit"], 0, {"m": M, "start": 1, "stop": 2}, np.hsplit(M, 3)[1]),
    (ELSEWHERE["insert"], 0, {"v": V, "i": 1, "x": 9.0}, np.insert(V, 1, 9.0)),
    (ELSEWHERE["delete"], 0, {"v": V, "i": 1}, np.delete(V, 1)),
    (ELSEWHERE["logspace"], 0, {"a": 0.0, "b": 2.0, "n": 5}, np.logspace(0, 2, 5)),
    (ELSEWHERE["geomspace"], 0, {"a": 1.0, "b": 16.0, "n": 5}, np.geomspace(1, 16, 5)),
    (ELSEWHERE["digitize"], 0, {"v": Y, "bins": V}, np.digitize(Y, V)),
    (ELSEWHERE["tensordot"], 0, {"a": M.T.copy(), "b": M}, np.tensordot(M.T, M, 1)),
    (ELSEWHERE["fmod"], 0, {"a": U, "b": -3.0}, np.fmod(U, -3.0)),
    (ELSEWHERE["heaviside"], 0, {"x": S, "h": 0.5}, np.heaviside(S, 0.5)),
    (ELSEWHERE["trapz"], 0, {"y": Y}, scipy.integrate.trapezoid(Y)),
    (ELSEWHERE["divmod"], 0, {"a": -7.5, "b": 2.0}, divmod(-7.5, 2.0)),
    (ELSEWHERE["select"], 0, {"c": Y > 2, "a": X, "d": Y < 1, "b": 7.0, "e": -1.0},
     np.select([Y > 2, Y < 1], [X, 7.0], -1.0)),
    (ELSEWHERE["ndtr"], 0, {"x": S}, scipy.special.ndtr(S)),
    (ELSEWHERE["log-ndtr"], 0, {"x": S}, scipy.special.log_ndtr(S)),
    (ELSEWHERE["norm.cdf"], 0, {"x": S}, scipy.stats.norm.cdf(S)),
    (ELSEWHERE["norm.logcdf"], 0, {"x": S}, scipy.stats.norm.logcdf(S)),
    (ELSEWHERE["norm.sf"], 0, {"x": S}, scipy.stats.norm.sf(S)),
    (ELSEWHERE["norm.pdf"], 0, {"x": S}, scipy.stats.norm.pdf(S)),
    (ELSEWHERE["norm.logpdf"], 0, {"x": S}, scipy.stats.norm.logpdf(S)),
    (ELSEWHERE["xlogy"], 0, {"x": X, "y": Y}, scipy.special.xlogy(X, Y)),
    (ELSEWHERE["xlog1py"], 0, {"x": X, "y": Y}, scipy.special.xlog1py(X, Y)),
    (ELSEWHERE["betaln"], 0, {"a": V, "b": 0.5}, scipy.special.betaln(V, 0.5)),
    (ELSEWHERE["beta"], 0, {"a": V, "b": 0.5}, scipy.special.beta(V, 0.5)),
    (ELSEWHERE["logit"], 0, {"x": 0.3}, scipy.special.logit(0.3)),
    *((ELSEWHERE["expm"], 0, {"a": a}, scipy.linalg.expm(a)) for a in (SQUARE, 20 * SQUARE - 9, 1e-9 * SQUARE)),
    (ELSEWHERE["solve-banded"], 0, {"l": BANDS[2, :-1], "d": BANDS[1], "u": BANDS[0, 1:], "b": U},
     scipy.linalg.solve_banded((1, 1), BANDS, U)),
    (ELSEWHERE["solveh-banded"], 0, {"l": BANDS[0, 1:], "d": BANDS[1], "u": BANDS[0, 1:], "b": U},
     scipy.linalg.solveh_banded(BANDS[:2], U)),
    (ELSEWHERE["toeplitz"], 0, {"c": U}, scipy.linalg.toeplitz(U)),
    (ELSEWHERE["toeplitz"], 1, {"c": U, "r": V}, scipy.linalg.toeplitz(U, V)),
    (ELSEWHERE["block"], 0, {"a": M, "b": M, "c": M, "d": 2 * M}, np.block([[M, M], [M, 2 * M]])),
    (ELSEWHERE["rot90"], 0, {"a": M}, np.rot90(M)),
    (ELSEWHERE["tri"], 0, {"n": "3", "m": "4"}, np.tri(3, 4)),
    (ELSEWHERE["float-power"], 0, {"x": V, "y": 2}, np.float_power(V, 2)),
    (ELSEWHERE["ediff1d"], 0, {"v": V}, np.ediff1d(V)),
    (ELSEWHERE["corrcoef"], 0, {"a": SQUARE}, np.corrcoef(SQUARE)),
    (ELSEWHERE["polyfit"], 0, {"x": U, "y": U**2, "deg": "1"}, np.polyfit(U, U**2, 1)),
    (ELSEWHERE["block-diag"], 0, {"a": M, "b": SQUARE}, scipy.linalg.block_diag(M, SQUARE)),
    (_NORMS, 0, {"v": U}, np.linalg.norm(U, 1)),
    (_NORMS, 1, {"v": U}, np.linalg.norm(U, np.inf)),
    (_NORMS, 2, {"m": M}, np.linalg.norm(M, 1)),
    (_NORMS, 3, {"m": M}, np.linalg.norm(M, np.inf)),
    *((_OPTIONS["convolve"]["mode"], 1, {"u": U, "v": v}, np.convolve(U, v, "same")) for v in (V, W)),
    *((_OPTIONS["convolve"]["mode"], 2, {"u": U, "v": v}, np.convolve(U, v, "valid")) for v in (V, W)),
    *((_OPTIONS["correlate"]["mode"], 1, {"u": U, "v": v}, np.correlate(U, v, "full")) for v in (V, W)),
    *((_OPTIONS["correlate"]["mode"], 2, {"u": U, "v": v}, np.correlate(U, v, "same")) for v in (V, W)),
    (_OPTIONS["pad"]["mode"], 1, {"v": V, "n": 2}, np.pad(V, 2, "edge")),
    (_OPTIONS["pad"]["mode"], 2, {"v": V, "n": 2}, np.pad(V, 2, "wrap")),
    (_OPTIONS["pad"]["constant-values"], 0, {"a": V, "n": "2", "c": 7.0}, np.pad(V, 2, constant_values=7.0)),
    (_OPTIONS["meshgrid"]["indexing"], 0, {"x": V, "y": W}, np.meshgrid(V, W, indexing="ij")),
    (_OPTIONS["searchsorted"]["side"], 0, {"v": V, "x": 2.0}, np.searchsorted(V, 2.0, side="right")),
    (_OPTIONS["searchsorted"]["side"], 2, {"v": V, "a": Y}, np.searchsorted(V, Y, side="right")),
    (_OPTIONS["transpose"]["axes"], 0, {"a": M}, np.transpose(M, axes=[1, 0])),
    (_OPTIONS["clip"]["a-max"], 0, {"a": U, "low": "None", "high": 2.0}, np.clip(U, None, 2.0)),
    (_OPTIONS["linspace"]["endpoint"], 0, {"a": 1.0, "b": 3.0, "n": 4}, np.linspace(1, 3, 4, endpoint=False)),
    (_OPTIONS["cov"]["rowvar"], 0, {"m": M}, np.cov(M, rowvar=False)),
    (_OPTIONS["cov"]["bias"], 0, {"m": M, "n": 3}, np.cov(M, bias=True)),
    (_OPTIONS["sum"]["where"], 0, {"c": U > 1, "a": U}, np.sum(U, where=U > 1)),
    (_OPTIONS["mean"]["where"], 0, {"c": U > 1, "a": U}, np.mean(U, where=U > 1)),
    (_OPTIONS["average"]["weights"], 0, {"v": V, "w": np.abs(S)}, np.average(V, weights=np.abs(S))),
    (_OPTIONS["vander"]["increasing"], 0, {"v": V}, np.vander(V, increasing=True)),
    (_OPTIONS["eye"]["k"], 0, {"n": 3}, np.eye(3, k=1)),
    (_OPTIONS["tril"]["k"], 0, {"a": M}, np.tril(M, k=1)),
    (_OPTIONS["diag"]["k"], 0, {"a": V}, np.diag(V, k=1)),
    *((_OPTIONS["interp"]["left"], 0, {"x": x, "xs": V, "ys": S, "left": 9.0}, np.interp(x, V, S, left=9.0))
      for x in (0.0, 1.5)),
    (_OPTIONS["interp"]["right"], 0, {"x": 5.0, "xs": V, "ys": S, "right": 9.0}, np.interp(5.0, V, S, right=9.0)),
    (_OPTIONS["cholesky"]["upper"], 0, {"a": M @ M.T}, np.linalg.cholesky(M @ M.T).T),
    (_OPTIONS["diff"]["n"], 0, {"a": U}, np.diff(U, n=2)),
    (_OPTIONS["diff"]["prepend"], 0, {"v": U, "x": 1.0}, np.diff(U, prepend=1.0)),
    (_OPTIONS["diff"]["append"], 0, {"v": U, "x": 1.0}, np.diff(U, append=1.0)),
    (_INSIDE[0][3], 0, {"a": M}, np.roll(M, (1, 1), (0, 1))),
    (_INSIDE[1][3], 0, {"v": V}, np.cov(V)),
]  # fmt: skip


def agree(got: Any, wanted: Any) -> None:
    if isinstance(got, tuple):
        assert len(got) == len(wanted)
        for x, y in zip(got, wanted):
            agree(x, y)
    else:
        assert np.shape(got) == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.some(6)
@pytest.mark.parametrize("hint, which, names, wanted", ROWS)
def test_a_hint_gives_what_it_stands_for(hint: str, which: int, names: dict[str, Any], wanted: Any) -> None:
    form = re.findall("`(.+?)`", as_hint(hint))[which]
    for name, text in names.items():
        if isinstance(text, str):
            form = re.sub(rf"(?<![\w-]){name}(?![\w-])", text, form)
    given = {name: value for name, value in names.items() if not isinstance(value, str)}
    model = hyad.model(f"(fn [{' '.join(given)}] {form})", namespace={})
    agree(model(*given.values()), wanted)
    agree(hyad.run(model, *given.values()), wanted)


def test_where_a_hint_is_looked_up() -> None:
    assert instead("np.add.at") == instead("numpy.add.at") == as_hint(ELSEWHERE["add.at"])
    assert instead("scipy.stats.norm.log_pdf") is None and "exp" in (instead("stats.norm.pdf") or "")
    assert instead("np.nan_to_num") == instead("nan-to-num") and instead("sum") is None
    for name in ("expm", "solve_banded", "solveh-banded", "toeplitz", "block_diag"):
        with pytest.raises(UnboundError) as caught:
            hyad.compile(hyad.model(f"(fn [a] ({name} a))", namespace={}), args=(SQUARE,))
        assert caught.value.hint == instead(name) == instead(f"scipy.linalg.{name}") and "`(" in caught.value.hint
    with pytest.raises(DerivativeError) as foreign:
        hyad.compile(hyad.model("(fn [a] (scipy.linalg.expm a))", namespace={"scipy": scipy}), args=(SQUARE,))
    assert foreign.value.hint == instead("expm")
    assert option_hint("np.convolve", None) == option_hint("convolve", "mode")
    assert option_hint("f", "mode") is None and option_hint("np.f", None) is None
    assert option_hint("np.linalg.svd", "compute-uv") == instead("svd")
