"""Files of models: ``hyad.load`` reads those of models alone by itself and has Hy import others."""

from __future__ import annotations

import os
import re
import types
from typing import TYPE_CHECKING

from .errors import ReadError, Source, Span, border, mistake, require_hint
from .model import Scope, data_type, make
from .program.forms import read_forms, unparse
from .program.names import mangled

if TYPE_CHECKING:
    from pathlib import Path


@border
def load(path: str | os.PathLike) -> types.ModuleType:
    """The models of a Hy file as a module: ``hyad.load("m.hy").f``.

    A file of ``defmodel`` forms alone is read by hyad; any other is imported by Hy. Raises ``ReadError`` for a file
    that cannot be read.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ReadError(f"hyad.load takes a path, not {type(path).__name__}", None, PATH_HINT)
    from pathlib import Path

    path = Path(path)
    text = text_of_file(path)
    if not text.strip():
        raise ReadError(f"{path} is empty", None, "write models in it: `(defmodel f [x] ...)`")
    module = types.ModuleType(mangled(path.stem) if path.stem else "models")
    module.__file__ = str(path)
    forms = read_forms(text, Source(text, str(path))) if plain_models(text) else None
    if forms is None:
        return import_hy(path, text)
    for form in forms:
        if form.head() == "defmodel":
            made = make(form, Scope(module.__dict__))
            setattr(module, mangled(made.name), made)
        elif form.head() == "defdata":
            for name, value in data_type(form, module.__name__).items():
                setattr(module, mangled(name), value)
        elif form.kind == "str":
            module.__doc__ = module.__doc__ or form.value
    return module


PATH_HINT = "give the path of a Hy file"


def text_of_file(path: Path) -> str:
    """A file's text, without the byte order mark that some editors write. Raises ``ReadError``."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ReadError(f"cannot read {path}: it is not a text file", None, PATH_HINT) from None
    except (OSError, ValueError) as error:
        raise ReadError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", None, PATH_HINT) from None
    if "\0" in text:
        raise ReadError(f"cannot read {path}: it is not a text file", None, PATH_HINT)
    return text


def plain_models(text: str) -> bool:
    """Whether a file holds nothing but models (and the lines that require hyad's macros)."""
    try:
        forms = read_forms(text)
    except ReadError:  # of a model, which says it best, unless there is something else for Hy to read
        heads = {*re.findall(r"^\(\s*([^\s()]+)", text, re.M)}
        others = heads - {"defmodel", "defdata", "require", "import"}
        return "defmodel" in heads and not others and not re.search(r"^\(import (?!hyad)", text, re.M)
    return all(
        f.head() in ("defmodel", "defdata")
        or f.kind == "str"
        or (f.head() in ("require", "import") and "hyad" in unparse(f))
        for f in forms
    )


def import_hy(path: Path, text: str) -> types.ModuleType:
    """Run a Hy file, which holds ``text``, as a module. Errors of what it runs are its own."""
    import importlib.util

    import hy  # noqa: F401  (installs the importer of .hy files)
    from hy.errors import HyLanguageError

    spec = importlib.util.spec_from_file_location(mangled(path.stem), path) if path.suffix == ".hy" else None
    if spec is None or spec.loader is None:
        raise ReadError(f"{path} is not a Hy file", None, "its name ends in .hy")
    if path.read_bytes().startswith(b"\xef\xbb\xbf"):
        raise ReadError(f"{path} starts with a byte order mark, which Hy cannot read", None, "save it without one")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        if os.path.abspath(error.filename or "") != os.path.abspath(path):
            raise
        raise unread(error, text, path) from None
    except HyLanguageError as error:
        raise (mistake(error) or error) from None
    except NameError as error:
        hint = require_hint(error)
        if hint is None or f"({error.name} " not in text:
            raise
        raise ReadError(f"{path}: {error}", None, hint) from None
    return module


def unread(error: SyntaxError, text: str, path: Path) -> SyntaxError | ReadError:
    """What to say of a file that Hy cannot read: where a bracket or a string is left open, else what Hy says."""
    source = Source(text, str(path))
    if not error.lineno:
        return error
    try:
        read_forms(text, source)
    except ReadError as mine:
        if any(word in mine.message for word in ("never closed", "has no end", "unmatched")):
            return mine
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: error.lineno - 1])) + max(0, (error.offset or 1) - 1)
    start = min(start, max(0, len(text) - 1))
    message = error.msg.splitlines()[0] if error.msg else "this is not Hy"
    return ReadError(f"Hy cannot read this: {message}", Span(source, start, start + 1))
