"""The README's code runs and gives what the README says.

In a ``hy`` block, ``; => value`` behind a form is the form's value, itself Hy; numbers agree to the digits written. In
a ``console`` block, the lines below ``$ command`` are its output, ``...`` standing for any text. ``c`` blocks are
compiled by the commands of the console blocks, under the file name in their first line's comment.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import hy
import numpy as np
import pytest
from hy.reader import HyReader, read_many

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def texts(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def agree(value: object, expected: object) -> None:
    if isinstance(expected, (str, bool)) or expected is None:
        assert value == expected
    elif isinstance(expected, tuple):
        assert isinstance(value, tuple) and len(value) == len(expected)
        for v, e in zip(value, expected):
            agree(v, e)
    else:
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-15)


def test_the_tour_gives_the_values_it_shows() -> None:
    module = ModuleType("readme")
    sys.modules["readme"] = module
    shown = 0
    for text in texts("hy"):
        lines = text.splitlines()
        for form in read_many(text, filename="README.md", reader=HyReader()):
            value = hy.eval(form, module.__dict__, module=module)
            behind = re.match(r"\s*; => (.*)", lines[form.end_line - 1][form.end_column :])
            if behind:
                agree(value, hy.eval(hy.read(behind[1]), module.__dict__, module=module))
                shown += 1
    assert shown == README.count("; => ") > 0


def test_the_tour_is_short() -> None:
    tour = texts("hy")[0]
    assert len(tour.splitlines()) <= 24
    assert max(map(len, tour.splitlines())) <= 100


def test_the_commands_print_what_is_shown(tmp_path: Path) -> None:
    """In a folder with the README's own files: each block that begins with a comment ``file NAME``."""
    for _, text in BLOCKS:
        named = re.match(r"(?:;|//) file (\S+)", text)
        if named:
            (tmp_path / named[1]).write_text(text)
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    ran = 0
    for text in texts("console"):
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            command = re.sub(r"^hyad ", f"{shlex.quote(sys.executable)} -m hyad ", command)
            done = subprocess.run(command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            wanted = ".*?".join(map(re.escape, output.strip().split("...")))
            assert re.fullmatch(wanted, done.stdout.strip(), re.DOTALL), (command, done.stdout)
            ran += 1
    assert ran > 0


def test_files_that_the_prose_names_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("target", re.findall(r"`make (\w+)`", README))
def test_make_targets_that_the_prose_names_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
