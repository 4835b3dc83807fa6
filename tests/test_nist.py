"""The example that `make demo` runs: NIST's files are read right, the Jacobians are right, the fits agree with NIST."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DATA = EXAMPLES / "nist"


@pytest.fixture(scope="module")
def nist():
    import hy  # noqa: F401  (lets Python import Hy files)

    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("nist")
    finally:
        sys.path.remove(str(EXAMPLES))
        sys.modules.pop("nist", None)


def test_a_file_is_read_right(nist) -> None:
    data = nist.Dataset(DATA / "Misra1a.dat")
    assert (data.name, data.level) == ("Misra1a", "Lower")
    assert [list(start) for start in data.starts] == [[500, 0.0001], [250, 0.0005]]
    assert list(data.certified) == [2.3894212918e02, 5.5015643181e-04]
    [x] = data.xs
    assert (len(x), x[0], x[-1]) == (14, 77.6, 760.0)
    assert (len(data.y), data.y[0], data.y[-1]) == (14, 10.07, 81.78)


@pytest.mark.parametrize(("name", "m", "n"), [("Thurber", 37, 7), ("MGH09", 11, 4), ("Rat43", 15, 4)])
def test_every_parameter_and_observation_is_read(nist, name: str, m: int, n: int) -> None:
    data = nist.Dataset(DATA / f"{name}.dat")
    assert [len(data.y), *map(len, data.xs)] == [m, m]
    assert [len(data.certified), *map(len, data.starts)] == [n, n, n]
    assert data.level == "Higher"


def test_two_predictors_and_a_log_response(nist, tmp_path: Path) -> None:
    """Nelson's file has two predictors, and its model is one of log(y)."""
    text = (DATA / "Misra1a.dat").read_text().replace("Misra1a", "Nelson")
    head, rows = text.split("Data:   y               x\n")
    rows = "".join(f"{row}   7.5E0\n" for row in rows.splitlines())
    (tmp_path / "Nelson.dat").write_text(f"{head}Data:   y              x1            x2\n{rows}")
    data = nist.Dataset(tmp_path / "Nelson.dat")
    assert len(data.xs) == 2 and set(data.xs[1]) == {7.5}
    assert data.y[0] == np.log(10.07)


def test_digits_of_agreement(nist) -> None:
    certified = np.array([2.0, 2.0, -2.0, 2.0])
    np.testing.assert_allclose(
        nist.digits(np.array([2.0, 2.0002, -2.0 - 2e-8, 5.0]), certified), [11, 4, 8, 0], atol=1e-6
    )


POINT = np.array([1.5, 0.7, 1.1, 0.9, 1.3, 0.6, 1.7, 0.8, 0.4])
X = np.array([0.3, 0.55, 1.25, 2.0, 3.1])
PARAMETERS = {
    2: "misra1a misra1b misra1c misra1d boxbod danwood",
    3: "chwirut1 chwirut2 bennett5 eckerle4 mgh10 rat42 nelson",
    4: "rat43 mgh09 roszman1",
    5: "mgh17 kirby2",
    6: "lanczos1 lanczos2 lanczos3",
    7: "hahn1 thurber",
    8: "gauss1 gauss2 gauss3",
    9: "enso",
}
SIZES = {name: n for n, names in PARAMETERS.items() for name in names.split()}


def test_all_27_problems_are_there(nist) -> None:
    assert set(nist.PROBLEMS) == set(SIZES) and len(SIZES) == 27


@pytest.mark.some(4)
@pytest.mark.parametrize(("name", "n"), SIZES.items())
def test_jacobian_agrees_with_differences(nist, name: str, n: int) -> None:
    """Central differences of the residuals, in steps that leave about nine digits."""
    import hyad

    _, residuals = nist.PROBLEMS[name]
    b = POINT[:n].copy()
    data = [X, X[::-1].copy(), X] if name == "nelson" else [X, X[::-1].copy()]
    jacobian = hyad.jacobian(residuals, wrt="b")(b, *data)
    assert jacobian.shape == (len(X), n)
    for i in range(n):
        h = np.zeros(n)
        h[i] = 1e-5
        slope = (np.asarray(residuals(b + h, *data)) - np.asarray(residuals(b - h, *data))) / 2e-5
        np.testing.assert_allclose(jacobian[:, i], slope, rtol=1e-6, atol=1e-8, err_msg=f"{name} b{i + 1}")


def test_the_demo_fits_all_and_says_so(nist, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    plot = tmp_path / "fits.png"
    assert nist.main(["--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "8 of 8 fits agree with NIST to 6 digits or more" in out
    for title in ("anf", "forward", "reverse", "simplified gradient", "c"):
        assert f"-- {title} --" in out
    assert len(out.splitlines()) <= 56
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_demo_says_what_was_compiled_and_what_was_cached(tmp_path: Path) -> None:
    """Each run claims what it did: the first, in an empty cache, compiles; the second, another process, only loads."""
    program = "import sys, hy, nist; sys.exit(nist.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--plot", str(tmp_path / "fits.png")]
    path = os.pathsep.join(map(str, (EXAMPLES.parent, EXAMPLES)))
    env = os.environ | {"HYAD_CACHE": str(tmp_path / "cache"), "PYTHONPATH": path}
    for origin in ("8 compiled to C.", "8 loaded from the cache of compiled C."):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f" s: {origin}" in done.stdout


def test_a_poor_fit_is_admitted(nist, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A certified value that is wrong in its fourth digit: one problem disagrees, and the command fails."""
    for path in DATA.glob("*.dat"):
        (tmp_path / path.name).write_text(path.read_text().replace("2.3894212918E+02", "2.3814212918E+02"))
    assert nist.main(["--data", str(tmp_path), "--plot", str(tmp_path / "fits.png")]) == 1
    out = capsys.readouterr().out
    assert re.search(r"6 of 8 fits agree with NIST to 6 digits or more; the fewest are 2\.5, Misra1a from start", out)
    assert re.search(r"Misra1a from start 2: 2\.5 digits after \d+ evaluations", out)


def test_missing_files_are_named(nist, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        nist.main(["--all"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert "has no file of" in err and "bennett5" in err and "thurber" not in err


@pytest.mark.skipif("HYAD_NIST_DATA" not in os.environ, reason="HYAD_NIST_DATA names no folder of NIST's 27 files")
def test_all_27_fits_agree(nist, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    argv = ["--all", "--data", os.environ["HYAD_NIST_DATA"], "--plot", str(tmp_path / "fits.png")]
    assert nist.main(argv) == 0
    assert "54 of 54 fits agree" in capsys.readouterr().out
