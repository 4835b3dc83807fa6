"""The examples for the GPU, at small sizes: on the CPU as C, and as CUDA text against the stand-in for pycuda."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
import standin
from hyad import device, gpu

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
needs_scipy = pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs the demo extra")


@pytest.fixture(scope="module")
def examples() -> Any:
    import hy  # noqa: F401  (lets Python import Hy files)

    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
    for name in ("heston", "bundle_jacobian"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def heston(examples: None) -> Any:
    return importlib.import_module("heston")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> standin.Driver:
    made = standin.install(monkeypatch, standin.Driver())
    made.Device(0).make_context()
    yield made
    made.Context.pop()
    device.driver.cache_clear()


# ------------------------------------------------------------------------------------------- Heston


def test_random_numbers(heston: Any) -> None:
    """The recurrences are L'Ecuyer's, in Python's integers; seeds of paths side by side have nothing in common."""
    x, y = [12345] * 3, [12345] * 3
    state = (*reversed(x), *reversed(y))
    for _ in range(50):
        x.append((1403580 * x[-2] - 810728 * x[-3]) % 4294967087)
        y.append((527612 * y[-1] - 1370589 * y[-3]) % 4294944443)
        a, b, c, d, e, f = state
        ahead, below = heston.later(b, c, d, f)
        assert (ahead, below) == (x[-1], y[-1])
        state = (ahead, a, b, below, d, e)
        wanted = ((x[-1] - y[-1]) % 4294967087 + 0.5) / 4294967087
        assert heston.uniform(ahead, below) == pytest.approx(wanted, rel=1e-15)
    words = np.array([[heston.seed(path, k) for k in range(1, 7)] for path in range(2000)], float)
    assert words.min() > 0 and len(np.unique(words)) > 11990
    assert np.abs(np.corrcoef(np.hstack([words[1:], words[:-1]]).T) - np.eye(12)).max() < 0.1


def test_prices_and_sensitivities(heston: Any) -> None:
    """Within four standard errors of the exact ones; the derivative is that of the same paths, by differences."""
    f = hyad.compile(heston.sensitivities, args=(heston.THETA, heston.STRIKES, 0.03, 1.0, 25, 0, 250, 40))
    mean, error, paths = heston.simulate(f, 20000, 25, 250, 40)
    exact = heston.exact_sensitivities()
    assert paths == 20000 and np.all(np.abs(mean - exact) < 4 * error + 0.01 * np.abs(exact))
    np.testing.assert_allclose(exact[:, 6], heston.exact_prices(heston.THETA), rtol=1e-8)
    for k in (1, 4, 5):
        step = np.zeros(7)
        step[k] = 1e-5 * abs(heston.THETA[k])
        ahead, behind = (
            heston.mean_payoffs(heston.THETA + s, heston.STRIKES, 0.03, 1.0, 25, 0, 400) for s in (step, -step)
        )
        at = f(heston.THETA, heston.STRIKES, 0.03, 1.0, 25, 0, 400, 1)[0][:, k]
        np.testing.assert_allclose((ahead - behind) / (2 * step[k]), at, rtol=2e-3, atol=1e-3 * np.abs(at).max())


@needs_cpu
def test_heston_as_cuda(heston: Any, driver: standin.Driver) -> None:
    args = (heston.THETA, heston.STRIKES, 0.03, 1.0, 5, 100, 3, 70)
    f = hyad.compile(heston.sensitivities, target="cuda", args=args)
    wanted = hyad.compile(heston.sensitivities, target="c", args=args)(*args)
    np.testing.assert_allclose(f(*args), wanted, rtol=1e-9, atol=1e-9)


@needs_cpu
def test_heston_prints(heston: Any, driver: standin.Driver, capsys: pytest.CaptureFixture) -> None:
    heston.main(["--paths", "64", "--steps", "4", "--gpu"])
    shown = capsys.readouterr().out
    assert "of 4 steps on a GPU" in shown and "rho" in shown
    with pytest.raises(SystemExit):
        heston.main(["--paths", "0"])


# ------------------------------------------------------------------------------------------- bundles


@needs_cpu
@needs_scipy
@pytest.mark.parametrize("options", [[], ["--gpu"], ["--threads", "2"]])
def test_blocks_of_observations(
    examples: None, driver: standin.Driver, capsys: pytest.CaptureFixture, options: list[str]
) -> None:
    """They are checked against differences by the example itself."""
    bundle = importlib.import_module("bundle_jacobian")
    bundle.main(["--observations", "300", "--repeat", "1", *options])
    assert "300 observations, blocks of 2 x 9" in capsys.readouterr().out
    args = bundle.made_up(300)
    found = bundle.blocks(*args)
    assert found.shape == (300, 2, 9) and bundle.check(args, found) < 1e-8
    found[150:] *= 1.001
    assert bundle.check(args, found) > 1e-4
