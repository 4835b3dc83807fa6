"""Tests written in Hy: pytest collects ``tests/test_*.hy`` as it does Python, asserts rewritten.

pytest's own import hook would parse a ``.hy`` file as Python, and it rewrites the asserts of no other file that is
imported. So a Hy test module is read, expanded and compiled here; also at every run, since bytecode on disk would hide
an edit of the macros under test. ``conftest.py`` imports the hooks.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType

import hy
import pytest
from _pytest.assertion.rewrite import rewrite_asserts
from hy.compiler import hy_compile
from hy.errors import HyLanguageError
from hy.reader import HyReader, read_many

SOURCES = ("hyad", "macros", "codegen")


class HyModule(pytest.Module):
    """A test module written in Hy."""

    def _getobj(self) -> ModuleType:
        name = ".".join(self.path.relative_to(self.config.rootpath).with_suffix("").parts)
        module = ModuleType(name)
        module.__file__ = str(self.path)
        sys.modules[name] = module  # (require ..) and pickling look the module up by its name
        try:
            exec(self._code(module), module.__dict__)
        except (SyntaxError, HyLanguageError) as error:  # the user's own form, not the inside of Hy
            raise self.CollectError("".join(traceback.format_exception_only(error))) from None
        self.config.pluginmanager.consider_module(module)
        return module

    def _code(self, module: ModuleType):
        source, filename = self.path.read_text(encoding="utf-8"), str(self.path)
        forms = read_many(source, filename=filename, skip_shebang=True, reader=HyReader())
        tree = hy_compile(forms, module, filename=filename, source=source)
        rewrite_asserts(tree, source.encode(), filename, self.config)
        return compile(tree, filename, "exec", dont_inherit=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> HyModule | None:
    if file_path.suffix == ".hy" and file_path.name.startswith("test_"):
        return HyModule.from_parent(parent, path=file_path)
    return None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Drop bytecode older than the newest Hy source: an edited macro does not make Hy compile its users again."""
    if hasattr(session.config, "workerinput"):
        return  # a worker of pytest-xdist: the main process has done it
    folders = [session.config.rootpath / name for name in SOURCES]
    newest = max((path.stat().st_mtime for folder in folders for path in folder.rglob("*.hy")), default=0.0)
    for folder in folders:
        for bytecode in folder.rglob("*.pyc"):
            if bytecode.stat().st_mtime < newest:
                bytecode.unlink(missing_ok=True)


__all__ = ["HyModule", "hy", "pytest_collect_file", "pytest_sessionstart"]
