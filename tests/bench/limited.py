"""Running a script of this folder in a process of its own, with a time limit that holds for its children too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class TooLong(Exception):
    """The script did not finish within its limit; it and its children have been ended."""


class OwnClock(TooLong):
    """It did not finish a part of its work within the limit that it had set itself for it."""


class Failed(Exception):
    """The script ended with an error; the text is its last line."""


def script(name: str, arguments: list[Any], limit: float, given: bytes = b"", environment: Any = None) -> Any:
    """What ``python NAME ARGUMENTS`` prints on its last line, read as JSON."""
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=environment, cwd=HERE
    )
    try:
        out, err = process.communicate(given, timeout=limit)
    except BaseException as reason:
        os.killpg(process.pid, signal.SIGKILL)  # the session that was started here, a compiler in it included
        process.communicate()
        if isinstance(reason, subprocess.TimeoutExpired):
            raise TooLong(f"> {limit:.0f} s") from None
        raise
    if process.returncode == -signal.SIGALRM:
        raise OwnClock("ended by its own clock")
    if process.returncode:
        lines = err.decode(errors="replace").strip().splitlines()
        raise Failed(next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no message"))
    return json.loads(out.decode().strip().splitlines()[-1])
