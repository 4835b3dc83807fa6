"""``hyad repl``: Hy's own REPL with hyad's macros at hand, forms laid out and coloured, mistakes without tracebacks.

What a session needs beyond the loop itself (the prelude, how values look, completion) is shared with the notebook
(``hyad.magic``, ``hyad.kernel``).
"""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import shutil
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import hy
from hy.completer import Completer
from hy.models import Expression, Keyword, Object, Symbol

from .errors import mistake, require_hint
from .layout import BODY_AFTER, pformat
from .program.forms import Form
from .program.primitives import PRIMITIVES

BANNER = """\
hyad {version} on Hy {hy}: symbolic differentiation. Tab completes, Ctrl-D leaves.
  (defmodel f [x] (* x (sin x)))  ((grad f) 2.0)        a model and its derivative
  (stages (grad f))  (hy.macroexpand '(symdiff (* x x) x))  stages, school rules\
"""

PRELUDE = """
(require hyad.macros *)
(require hyad.macros.textbook *)
(import hyad)
"""


def prelude(module: ModuleType) -> None:
    """Make hyad's macros and public names known in ``module``; a name that is a builtin's or taken stays what it is."""
    import hyad

    hy.eval(hy.read_many(PRELUDE), module=module)
    for name in hyad.__all__:
        if not hasattr(builtins, name) and not hasattr(module, name):
            setattr(module, name, getattr(hyad, name))


# -------------------------------------------------------------------------------------- how values look


def display(value: Any, width: int = 79) -> str:
    """The text that a session shows for a value.

    A Hy model is laid out, quoted as Hy has it; a form or a program of hyad as its own text; a mapping of those (what
    ``hyad.stages`` gives) as each one below its name; anything else as ``hy.repr`` has it.
    """
    if isinstance(value, Keyword):
        return str(value)
    if isinstance(value, Object):
        return pformat(Expression([Symbol("quote"), value]), width)
    if isinstance(value, Form):
        return pformat(value, width)
    if _is_ours(value) and not isinstance(value, BaseException):
        return str(value)
    if isinstance(value, Mapping) and value and all(_is_ours(v) for v in value.values()):
        return "\n\n".join(f";; {name}\n{display(v, width)}" for name, v in value.items())
    return hy.repr(value)


def _is_ours(value: Any) -> bool:
    """Whether the value's class is hyad's and says itself how it prints (a mapping does not: its values do)."""
    kind = type(value)
    ours = kind.__module__ == "hyad" or kind.__module__.startswith("hyad.")
    return ours and kind.__str__ is not object.__str__ and not isinstance(value, Mapping)


def explained(error: BaseException) -> str:
    """What a user is told of an error: hyad's message or Hy's; of any other, which the user's own code raised, the
    traceback from there on. ``HYAD_DEBUG=1`` keeps all of it."""
    from hy.errors import HyLanguageError

    wrong = mistake(error)
    if wrong is not None:
        return f"{type(wrong).__name__}: {wrong}"
    if isinstance(error, HyLanguageError):
        return "".join(traceback.format_exception_only(type(error), error)).rstrip()
    step = error.__traceback__
    if os.environ.get("HYAD_DEBUG", "0") in ("", "0"):
        while step is not None and not _is_users(step.tb_frame.f_code.co_filename):
            step = step.tb_next
    text = "".join(traceback.format_exception(type(error), error, step or error.__traceback__)).rstrip()
    hint = require_hint(error)
    return text if hint is None else f"{text}\nhint: {hint}"


def _is_users(filename: str) -> bool:
    """Whether a frame's file is neither hyad's, nor Hy's, nor of what starts them and imports."""
    folders = (os.path.dirname(__file__), os.path.dirname(hy.__file__), os.path.dirname(runpy.__file__))
    inside = any(os.path.dirname(filename).startswith(f) for f in folders)
    return not (inside or filename.startswith("<frozen") or os.path.basename(filename) == os.path.basename(sys.argv[0]))


def wants_colour(stream: Any) -> bool:
    """Whether to colour what goes to ``stream``: a terminal, and https://no-color.org obeyed."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def coloured(text: str) -> str:
    """``text``, Hy code, with a terminal's colours; as it is where pygments is not installed."""
    try:
        from pygments import highlight
        from pygments.formatters import TerminalFormatter
        from pygments.lexers import HyLexer
    except ImportError:
        return text
    return highlight(text, HyLexer(stripnl=False, ensurenl=False), TerminalFormatter())


# ------------------------------------------------------------------------------------------- completion


class Names(Completer):
    """Hy's completer, which knows a session's names and macros, and the language of models besides."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__(namespace)
        self.path += [getattr(builtins, "_hy_macros", {}), PRIMITIVES, BODY_AFTER]

    def global_matches(self, text: str) -> list[str]:
        return sorted(set(super().global_matches(text)))

    def matches(self, text: str) -> list[str]:
        """What ``text`` may be the start of; names that begin with an underscore only where it does."""
        found = self.attr_matches(text) if "." in text else self.global_matches(text)
        last = len(text.rpartition(".")[0])
        private = text[last:].lstrip(".").startswith("_")
        return [name for name in found if private or not name[last:].lstrip(".").startswith("_")]

    def complete(self, text: str, state: int) -> str | None:
        found = self.matches(text)
        return found[state] if state < len(found) else None


# ------------------------------------------------------------------------------------------------- REPL


class REPL(hy.REPL):
    """Hy's REPL; ``talks`` says whether a person types, who sees a banner, prompts and colours."""

    def __init__(self, talks: bool) -> None:
        super().__init__(output_fn=self._text)
        self.talks = talks
        self.ps1, self.ps2 = ("hyad=> ", "  ...  ") if talks else ("", "")
        prelude(self.module)

    def _text(self, value: Any) -> str:
        text = display(value, min(shutil.get_terminal_size().columns, 100) - 1)
        return coloured(text) if wants_colour(sys.stdout) else text

    def _error_wrap(self, exc_info_override: bool = False, *args: Any, **kwargs: Any) -> None:
        """Hy's hook for every error: a mistake in the words of the language is all that the user needs of it."""
        known = self.locals.get("_hy_exc_info") if exc_info_override else None
        wrong = mistake((known or sys.exc_info())[1])
        if wrong is None:
            super()._error_wrap(exc_info_override, *args, **kwargs)
            return
        self.write(f"{type(wrong).__name__}: {wrong}\n")
        self.locals[hy.mangle("*e")] = wrong

    def banner(self) -> str:
        import hyad

        return BANNER.format(version=hyad.__version__, hy=hy.__version__) if self.talks else ""

    def interact(self, banner: str | None = None, exitmsg: str | None = None) -> None:
        try:  # Hy's REPL has just put its own completer there, and takes ours away after
            import readline

            readline.set_completer(Names(self.locals).complete)
        except ImportError:
            pass
        super().interact(banner=banner, exitmsg="")

    def load(self, path: str) -> None:
        """Evaluate a Hy file in the session. Errors: what the file raises; ``ReadError`` if it cannot be read."""
        from .files import text_of_file, unread

        text = text_of_file(Path(path))
        try:
            hy.eval(hy.read_many(text, filename=path, skip_shebang=True), module=self.module)
        except SyntaxError as error:
            if error.filename != path:
                raise
            raise unread(error, text, Path(path)) from None


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hyad repl",
        description="A Hy session with hyad's macros. Hy's history file ($HY_HISTORY) and start-up file ($HYSTARTUP) "
        "are read; NO_COLOR is obeyed.",
    )
    parser.add_argument("file", nargs="?", help="a Hy file whose models the session starts with")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a session; 0, or 1 if the file it should start with fails."""
    options = arguments().parse_args(argv)
    repl = REPL(talks=sys.stdin.isatty())
    if options.file:
        try:
            repl.load(options.file)
        except Exception as error:
            print(explained(error), file=sys.stderr)
            return 1
    try:
        return repl.run()
    except SystemExit as leave:  # (quit)
        return leave.code if isinstance(leave.code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
