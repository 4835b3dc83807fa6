"""hyad works from a checkout that nobody installed, and as a wheel far away from it; the wheel holds what it should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"hyad": "hyad", "macros": "hyad/macros", "codegen": "hyad/codegen"}  # in the checkout: in the wheel
VERSION = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]

MODEL = """\
(require hyad.macros [defmodel])
(defmodel area [r R] "of a ring" (* 3.0 (- (* R R) (* r r))))
"""
PROGRAM = """\
import math, hyad
f = hyad.model("(model [x y] (* y (sin x)))")
g = hyad.grad(f, wrt=("x", "y"))(0.5, 2.0)
assert math.isclose(g[0], 2 * math.cos(0.5), rel_tol=1e-14), g
assert math.isclose(g[1], math.sin(0.5), rel_tol=1e-14), g
print(hyad.__version__, hyad.__file__)
"""


def run(*command: str | Path, cwd: Path, **extra: str) -> str:
    """The command's standard output; fails with its standard error."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env | extra, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools leaves its own files beside pyproject.toml."""
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", place, copy, cwd=place)
    [built] = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with hyad from the wheel; its dependencies are those of the running one, not downloaded."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    assert list(site.iterdir()) == []
    # `python -m pip --python` installs into another environment; a .pth inside a folder added by a .pth is not read,
    # so an editable hyad of the running environment stays out of sight.
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=home)
    assert {path.name for path in site.iterdir()} == {"hyad", f"hyad-{VERSION}.dist-info"}
    (site / "dependencies.pth").write_text(
        "\n".join(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))
    )
    return home


def test_wheel_holds_every_source_file_and_no_other(wheel: Path) -> None:
    expected = {
        f"{inside}/{path.relative_to(ROOT / outside).as_posix()}"
        for outside, inside in FOLDERS.items()
        for path in (ROOT / outside).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected
    assert any(name.endswith(".hy") for name in held)


def test_wheel_runs_a_model_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    version, where = run(installed / "bin" / "python", "-c", PROGRAM, cwd=tmp_path).split()
    assert version == VERSION
    assert Path(where).is_relative_to(installed)


def test_installed_command_runs_a_hy_file(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "ring.hy").write_text(MODEL)
    assert float(run(installed / "bin" / "hyad", "run", "ring.hy", "area", "1.0", "2.0", cwd=tmp_path)) == 9.0
    assert VERSION in run(installed / "bin" / "hyad", "--version", cwd=tmp_path)


def test_checkout_runs_uninstalled(tmp_path: Path) -> None:
    """A copy of the checkout, hidden from any installed hyad: `python -m hyad` in its root."""
    copy = tmp_path / "checkout"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    assert VERSION in run(sys.executable, "-m", "hyad", "--version", cwd=copy)
    version, where = run(sys.executable, "-c", PROGRAM, cwd=copy).split()
    assert version == VERSION
    assert Path(where) == copy / "hyad" / "__init__.py"
