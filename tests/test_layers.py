"""Imports only go down: the order of the modules, read from their imports.

A module imports modules of a lower layer, or of its own. ``codegen`` knows nothing of differentiation, the engine
nothing of printing. A module that no layer names fails the test: whoever adds one decides where it stands.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"hyad": "hyad", "macros": "hyad.macros", "codegen": "hyad.codegen"}

LAYERS: list[set[str]] = [
    {f"hyad.{name}".rstrip(".") for name in names.split(" ")}
    for names in (
        "errors",
        "core program.data program.forms program.names program.signature program.einsum program.advice",
        "layout program.affine program.alike program.journal program.marks program.own_primitives program.primitives"
        " program.recent program.values",
        "program.check program.dead program.printer program.reader program.rewrite",
        "program",  # what no other line names of it
        "passes",
        "differentiate frontend grid",
        "interpret",
        "codegen",
        "call_errors checking compiling cublas derivatives device emit emulate files gpu marshalling memo model"
        " plain_python report runtime sparse stages switches",
        "",  # hyad itself
        "macros",
        "cli kernel magic repl",
        "__main__",
    )
]
PACKAGES = {f"hyad.{name}" for name in "program passes differentiate frontend grid interpret codegen".split()}
DIFFERENTIATION = {f"hyad.differentiate.{name}" for name in ("derive", "forward", "reverse")}


def modules() -> dict[str, Path]:
    """Every Python module of the checkout by its import name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


MODULES = modules()


def layer_of(module: str) -> int | None:
    """The layer that names the module, or else its package: all of ``hyad.passes`` is one layer."""
    for name in (module, module.rpartition(".")[0]):
        for height, names in enumerate(LAYERS):
            if name in names and (name == module or name in PACKAGES):
                return height
    return None


def imports(module: str) -> set[str]:
    """The modules of hyad that a module imports, wherever in its text."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    used = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names if alias.name.split(".")[0] == "hyad"}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] == "hyad":
                named = {f"{base}.{alias.name}" for alias in node.names}
                used |= {name if name in MODULES else base for name in named}
    return used - {module}


def test_every_module_has_a_layer() -> None:
    assert {module for module in MODULES if layer_of(module) is None} == set()


def test_what_the_layers_and_the_map_name_is_there() -> None:
    """Each module of a layer is one of the checkout, and the map of the architecture names each and no other: under
    the heading that names its folder, or with its path."""
    assert set().union(*LAYERS) - MODULES.keys() == {"hyad.codegen", "hyad.macros"} - MODULES.keys()
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set()
    for _, folder, rows in re.findall(r"^\*\*(.+?): `(\S+/)`(.*?)(?=^\*\*|^## )", text, re.MULTILINE | re.DOTALL):
        named |= {path if "/" in path else folder + path for path in re.findall(r"`([\w/]+\.py)`", rows)}
    here = {path.relative_to(ROOT).as_posix() for name, path in MODULES.items() if not path.stem.startswith("__")}
    assert named == {path for path in here if not path.startswith("macros/")}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_only_go_down(module: str) -> None:
    upwards = {used for used in imports(module) if (layer_of(used) or 0) > (layer_of(module) or 0)}
    assert upwards == set()


def test_codegen_knows_nothing_of_differentiation() -> None:
    for module in MODULES:
        if module.startswith("hyad.codegen"):
            assert not imports(module) & DIFFERENTIATION, module


def test_engine_knows_nothing_of_printing_code() -> None:
    for module in MODULES:
        if (layer_of(module) or 0) <= layer_of("hyad.differentiate.derive"):
            assert not {used for used in imports(module) if used.startswith("hyad.codegen")}, module


def test_imports_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of imports finds every way to write one, also inside a function."""
    source = "import hyad.core\nfrom . import errors\ndef f():\n    from .codegen.c import emit\n    import sympy\n"
    (tmp_path / "sample.py").write_text(source)
    monkeypatch.setitem(MODULES, "hyad.sample", tmp_path / "sample.py")
    assert imports("hyad.sample") == {"hyad.core", "hyad.errors", "hyad.codegen.c"}
