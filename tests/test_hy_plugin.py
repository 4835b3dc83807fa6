"""Tests written in Hy are collected, fail when they should, and say why as Python's do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hy_plugin

SAMPLE = """\
(import pytest)
(defmacro twice [form] `(do ~form ~form))

(defn test-macros-and-fixtures [tmp-path]
  (setv n 0)
  (twice (+= n 1))
  (assert (and (= n 2) (.exists tmp-path))))

(defn [(pytest.mark.parametrize "x" [1 3])] test-odd? [x]
  (assert (= (% x 2) 1)))

(defn test-that-fails []
  (setv found [1 2])
  (assert (= found [1 3])))
"""


@pytest.fixture
def run(tmp_path: Path):
    """Run pytest on one Hy test file with the plugin as its only conftest."""

    def run_pytest(text: str, *args: str) -> str:
        (tmp_path / "conftest.py").write_text(Path(hy_plugin.__file__).read_text())
        (tmp_path / "test_sample.hy").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\npython_functions = test_* hyx_test_*\n")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    return run_pytest


def test_hy_tests_are_collected_and_their_asserts_explained(run) -> None:
    out = run(SAMPLE)
    assert "1 failed, 3 passed" in out
    assert "assert [1, 2] == [1, 3]" in out and "At index 1 diff: 2 != 3" in out
    assert "test_sample.hy:14: AssertionError" in out


def test_one_hy_test_is_selected_by_its_name(run) -> None:
    assert "1 passed" in run(SAMPLE, "test_sample.hy::test_macros_and_fixtures")


def test_a_mistake_in_a_hy_test_points_at_it(run) -> None:
    out = run("(defn test-unfinished []\n  (assert (= 1 1))\n")
    assert "1 error" in out and "test_sample.hy" in out and "Traceback" not in out
