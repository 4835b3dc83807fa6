"""Hy in IPython and Jupyter: ``%load_ext hyad.magic``, then ``%%hy`` cells and ``%hy (form)`` lines.

``%hymode on`` makes every cell that does not start with ``%`` a Hy cell; ``hyad.kernel`` does that from the start. Hy
and Python cells share one namespace. Forms and programs display laid out; a mistake shows hyad's message alone.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import hy
import hy.models
from hy.compiler import HyASTCompiler, hy_compile
from hy.errors import HyLanguageError
from hy.reader import HyReader, read_many

from .errors import mistake
from .program.forms import Form
from .repl import coloured, display, prelude, wants_colour


class Session:
    """The Hy side of one IPython shell: its reader (reader macros stay defined), its macros, its namespace."""

    def __init__(self, shell: Any) -> None:
        self.shell, self.reader, self.cells = shell, HyReader(), 0
        self.module: ModuleType = shell.user_module
        shell.user_ns.setdefault("_hy_macros", {})
        shell.user_ns.setdefault("_hy_reader_macros", {})

    def run(self, source: str) -> Any:
        """Evaluate every form of ``source``; the value of the last."""
        self.cells += 1
        name = self.shell.compile.cache(source, self.cells)  # tracebacks quote the cell's own lines
        body, last = hy_compile(
            read_many(source, filename=name, reader=self.reader),
            self.module,
            get_expr=True,
            filename=name,
            source=source,
            import_stdlib=self.cells == 1,
            compiler=HyASTCompiler(self.module, name, source),
        )
        exec(compile(body, name, "exec"), self.shell.user_ns)
        return eval(compile(ast.Expression(last.body), name, "eval"), self.shell.user_ns)


def load_ipython_extension(shell: Any) -> Session:
    """What ``%load_ext hyad.magic`` calls: registers the magics, the displays and the error handler."""
    session = Session(shell)
    prelude(session.module)

    def run(line: str, cell: str | None = None) -> Any:
        return session.run(line if cell is None else cell)

    shell.register_magic_function(run, "line_cell", "hy")
    shell.register_magic_function(lambda line="": hymode(shell, line.strip() != "off"), "line", "hymode")
    _display_forms(shell)
    shell.set_custom_exc((Exception,), _show_error)
    return session


def hymode(shell: Any, on: bool) -> None:
    """Make every cell a Hy cell, or no longer. A cell that starts with ``%`` stays what it says."""
    transforms: list[Callable[[list[str]], list[str]]] = shell.input_transformers_cleanup
    transforms[:] = [f for f in transforms if f is not _as_hy]
    if on:
        transforms.insert(0, _as_hy)


def _as_hy(lines: list[str]) -> list[str]:
    """IPython's input transformation: a plain cell becomes a ``%%hy`` cell."""
    plain = any(line.strip() for line in lines) and not lines[0].startswith("%")
    return ["%%hy\n", *lines] if plain else lines


def _display_forms(shell: Any) -> None:
    """Forms display as ``display`` has them, those of Hy and those of hyad."""
    formatter = shell.display_formatter.formatters["text/plain"]
    models = {t for t in vars(hy.models).values() if isinstance(t, type) and issubclass(t, hy.models.Object)}
    for kind in (*models, Form):
        formatter.for_type(kind, lambda value, printer, cycle: printer.text(_text(value)))


def _text(value: Any) -> str:
    text = display(value)
    return coloured(text) if wants_colour(sys.stdout) else text


def _show_error(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> list[str]:
    """IPython's handler: a mistake shows its message alone, any other error of a Hy cell starts at the cell's line."""
    wrong = mistake(error)
    if wrong is not None:
        kind, error = type(wrong), wrong
        text = f"{kind.__name__}: {wrong}".splitlines()
    elif isinstance(error, HyLanguageError):
        text = "".join(traceback.format_exception_only(kind, error)).splitlines()
    else:
        step = trace
        while step is not None:
            if step.tb_frame.f_code.co_filename == __file__:
                trace, tb_offset = step.tb_next or trace, 0
            step = step.tb_next
        text = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
    shell._showtraceback(kind, error, text)
    return text
