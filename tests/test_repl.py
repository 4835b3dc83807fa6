"""`hyad repl`, driven as a person does (a terminal) and as a script does (a pipe)."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import hy
import pytest

from hyad.errors import DerivativeError, HyadError
from hyad.program.forms import read_forms
from hyad.repl import BANNER, Names, display, mistake

ROOT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "hyad.repl"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "HY_HISTORY": str(folder / "history"), **more}


def piped(text: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, env=environment(folder), capture_output=True, text=True, timeout=60
    )


def test_a_piped_session_prints_results_and_nothing_else(tmp_path):
    session = piped(
        """
        (setv x 3.0)
        (symdiff
          (* x x)
          x)
        '(let [y 1 z 2] (+ y z))
        None
        (quit)
        (print "never")
        """,
        tmp_path,
    )
    assert session.stdout == "6.0\n'(let [y 1\n       z 2]\n   (+ y z))\n"
    assert session.stderr.strip() == ""
    assert session.returncode == 0


def test_what_the_banner_says_works(tmp_path):
    lines = [line[: line.rindex(")") + 1] for line in BANNER.splitlines()[1:]]
    session = piped("\n".join(lines), tmp_path)
    assert session.stderr.strip() == "" and "(+ (* 1 x) (* x 1))" in session.stdout


def test_a_mistake_shows_its_message_without_a_traceback(tmp_path):
    session = piped("(symdiff (gamma x) x)\n(+ 1 1)\n(str *e)\n", tmp_path)
    assert session.stderr.startswith("DerivativeError: school teaches no derivative of `(gamma x)`\n")
    assert "\n  (symdiff (gamma x) x)\n           ^^^^^^^^^\nhint: " in session.stderr  # underlined
    assert "Traceback" not in session.stderr
    assert session.stdout.startswith("2\n")
    assert "gamma" in session.stdout  # *e is the mistake itself


def test_other_errors_are_hys_own(tmp_path):
    session = piped("(/ 1 0)\n", tmp_path)
    assert "ZeroDivisionError" in session.stderr
    assert "(/ 1 0)" in session.stderr
    assert "hyad/" not in session.stderr


def test_a_file_is_loaded_first(tmp_path):
    models = tmp_path / "models.hy"
    models.write_text("(defn twice [x] (* 2 x))\n", encoding="utf-8")
    assert piped("(twice 4)", tmp_path, str(models)).stdout == "8\n"


def test_a_file_that_fails_says_so_without_hyads_frames(tmp_path):
    path = tmp_path / "models.hy"
    path.write_text("(defn f [x]\n  (* x", encoding="utf-8")
    assert piped("1", tmp_path, str(path)).stderr.startswith("ReadError: this `(` is never closed")
    path.write_text("(setv x (/ 1 0))", encoding="utf-8")
    said = piped("1", tmp_path, str(path)).stderr
    assert "ZeroDivisionError" in said and said.count("  File ") == 1


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path, content):
    path = tmp_path / "models.hy"
    if content is not None:
        path.write_bytes(content)
    session = piped("1", tmp_path, str(path))
    assert session.returncode == 1
    assert session.stderr.startswith(f"ReadError: cannot read {path}")
    assert session.stdout == ""


def test_a_terminal_session(tmp_path):
    """Banner, prompts, colour, completion by the tab key, and what was typed is in the history file afterwards."""
    pty = pytest.importorskip("pty")
    pytest.importorskip("readline")
    pytest.importorskip("pygments")
    parent, child = pty.openpty()
    env = environment(tmp_path, TERM="xterm")
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(COMMAND, stdin=child, stdout=child, stderr=child, env=env, start_new_session=True)
    os.close(child)
    heard = b""

    def until(pattern: str) -> str:
        """What the session says up to ``pattern``; a wait of a minute is an error."""
        nonlocal heard
        start = len(heard)
        end = time.monotonic() + 60
        while not re.search(pattern, heard[start:].decode(errors="replace")):
            assert time.monotonic() < end and select.select([parent], [], [], 60)[0], heard.decode(errors="replace")
            heard += os.read(parent, 4096)
        return heard[start:].decode(errors="replace")

    try:
        opening = until("hyad=> ")
        assert "(defmodel f [x]" in opening and len(opening.strip().splitlines()) == 4  # three lines and the prompt
        os.write(parent, b"(setv x 3.0)\n")
        until("hyad=> $")
        os.write(parent, b"(symdi\t")
        until("ff")  # a bell may stand before it
        os.write(parent, b" (* x x) x)\n")
        until(r"6\.0[\s\S]*hyad=> $")
        os.write(parent, b"'(let [y 1 z 2]\n")
        until(r"  \.\.\.  $")
        os.write(parent, b"(+ y z))\n")
        assert "\x1b[" in until("hyad=> $")
        os.write(parent, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(parent)
    assert "(setv x 3.0)" in (tmp_path / "history").read_text(encoding="utf-8").replace("\\040", " ")


# ------------------------------------------------------------------------------------ what it is made of


class Shown:
    """Stands for a class of hyad that says how it prints."""

    def __str__(self) -> str:
        return "(+ 1 2)"


Shown.__module__ = "hyad.somewhere"


@pytest.mark.parametrize(
    "value, text",
    [
        (hy.read("(+ 1 2)"), "'(+ 1 2)"),
        (hy.read("x"), "'x"),
        (hy.read(":wrt"), ":wrt"),
        (read_forms("(+ 1 2)")[0], "(+ 1 2)"),
        ([1, (2.0, "a")], '[1 #(2.0 "a")]'),
        ({}, "{}"),
        ({"a": 1}, '{"a" 1}'),
        (Shown(), "(+ 1 2)"),
        ({"anf": Shown(), "forward": Shown()}, ";; anf\n(+ 1 2)\n\n;; forward\n(+ 1 2)"),
    ],
)
def test_how_values_look(value, text):
    assert display(value) == text


def test_the_mistake_behind_an_error():
    wrong = DerivativeError("no derivative")
    wrapped = RuntimeError("expanding a macro")
    wrapped.__cause__ = wrong
    assert mistake(wrong) is wrong
    assert mistake(wrapped) is wrong
    assert mistake(ValueError()) is None
    assert mistake(None) is None
    assert isinstance(wrong, HyadError)


def test_completion_knows_names_macros_and_the_language_of_models():
    names = Names({"some_value": 1, "_hy_macros": {"symdiff": None}, "text": "abc"})
    assert names.matches("some-") == ["some-value"]
    assert names.matches("symd") == ["symdiff"]
    assert "defn" in names.matches("def")  # Hy's own
    assert "build" in names.matches("bui")  # a form of models
    assert "sin" in names.matches("si")  # a primitive
    assert "text.upper" in names.matches("text.up")
    assert not any("__" in name for name in names.matches("text."))
    assert "text.__len__" in names.matches("text.__l")
    assert names.complete("symd", 0) == "symdiff"
    assert names.complete("symd", 1) is None
