"""A Jupyter kernel whose cells are Hy, with hyad's macros at hand.

``python -m hyad.kernel install --sys-prefix`` makes Jupyter offer it as "Hy (hyad)"; ``--user`` installs it for every
environment of the user instead. A cell that starts with ``%`` is IPython's, so its magics work; Hy's own
``(pys "...")`` runs Python in the same namespace.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import hy
from hy.reader import read_many
from hy.reader.exceptions import PrematureEndOfInput
from ipykernel.ipkernel import IPythonKernel

from .magic import hymode, load_ipython_extension
from .repl import Names

NAME = "hyad"
DELIMITERS = "()[]{} \n\t'`~\""


def word_at(code: str, position: int) -> tuple[int, str]:
    """Where the name that ends at ``position`` starts, and the name."""
    start = max(code.rfind(c, 0, position) for c in DELIMITERS) + 1
    return start, code[start:position]


class HyKernel(IPythonKernel):
    implementation = NAME
    implementation_version = hy.__version__
    banner = f"hyad on Hy {hy.__version__}"
    language_info = {
        "name": "hy",
        "version": hy.__version__,
        "mimetype": "text/x-hylang",
        "file_extension": ".hy",
        "pygments_lexer": "hylang",
        "codemirror_mode": "clojure",
    }

    def start(self) -> None:
        super().start()
        load_ipython_extension(self.shell)
        hymode(self.shell, True)

    def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        start, text = word_at(code, cursor_pos)
        return {
            "status": "ok",
            "matches": Names(self.shell.user_ns).matches(text),
            "cursor_start": start,
            "cursor_end": cursor_pos,
            "metadata": {},
        }

    def do_inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> dict[str, Any]:
        """The documentation of the macro or value whose name the cursor touches."""
        end = min((i for c in DELIMITERS if (i := code.find(c, cursor_pos)) >= 0), default=len(code))
        name = hy.mangle(word_at(code, end)[1] or "_")
        macro = self.shell.user_ns["_hy_macros"].get(name)
        if macro is None:
            return super().do_inspect(name, len(name), detail_level, omit_sections)
        text = f"(macro) {hy.unmangle(name)}\n\n{macro.__doc__ or 'It has no documentation.'}"
        return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}

    def do_is_complete(self, code: str) -> dict[str, Any]:
        if code.startswith("%"):
            return super().do_is_complete(code)
        try:
            list(read_many(code))
        except PrematureEndOfInput:
            return {"status": "incomplete", "indent": "  "}
        except SyntaxError:
            return {"status": "invalid"}
        return {"status": "complete"}


def spec() -> dict[str, Any]:
    """The kernel's description for Jupyter. From a checkout that is not installed it says where that lies."""
    root = Path(__file__).resolve().parent.parent
    path = f"{root}{os.pathsep}${{PYTHONPATH}}"  # Jupyter fills in what the user has set
    checkout = {"env": {"PYTHONPATH": path}} if (root / "pyproject.toml").exists() else {}
    command = [sys.executable, "-m", "hyad.kernel", "-f", "{connection_file}"]
    return {"argv": command, "display_name": "Hy (hyad)", "language": "hy", **checkout}


def install(prefix: str | None = None, user: bool = False) -> str:
    """Tell Jupyter of the kernel; where the description now lies."""
    from jupyter_client.kernelspec import KernelSpecManager

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec(), indent=1), encoding="utf-8")
        return KernelSpecManager().install_kernel_spec(folder, NAME, prefix=prefix, user=user)


def main(argv: list[str]) -> int:
    """``install`` the kernel, or be it, as Jupyter starts it."""
    if argv[:1] != ["install"]:
        from ipykernel.kernelapp import IPKernelApp

        from hyad.kernel import HyKernel as Kernel  # not __main__'s: classes are looked up by their module

        IPKernelApp.launch_instance(argv, kernel_class=Kernel)
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m hyad.kernel install", description="Make Jupyter offer hyad's kernel."
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "--sys-prefix", action="store_const", dest="prefix", const=sys.prefix, help="in this environment"
    )
    place.add_argument("--user", action="store_true", help="for every environment of the user")
    place.add_argument("--prefix", help="in the environment that lies there")
    options = parser.parse_args(argv[1:])
    print(install(options.prefix, options.user))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
