"""What every test runs under: hyad from this checkout, checked passes, a code cache of its own, repeatable examples.

``--update-golden`` rewrites the golden files instead of comparing with them; ``--hypothesis-profile explore`` looks
for new counterexamples instead of replaying the same examples; ``--all`` (``make test-all``) runs every variant of the
tests that are marked ``some``, of which a run takes every third, sixth .. otherwise, and those that are ``long``.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from hy_plugin import pytest_collect_file, pytest_sessionstart  # noqa: F401  (hooks)

TESTS = Path(__file__).resolve().parent

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from this run's output")
    parser.addoption("--all", action="store_true", help="run what is marked some(step) and long, too")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before any test module imports hyad; workers of pytest-xdist inherit it."""
    if hasattr(config, "workerinput"):
        return
    os.environ["HYAD_CHECK"] = "1"
    os.environ["HYAD_CACHE"] = tempfile.mkdtemp(prefix="hyad-test-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["HYAD_CACHE"], ignore_errors=True)


#: The files that take longest. pytest-xdist gives whole files to its workers, those with most tests first: with these
#: before all others none is left to one worker in the end.
LONGEST = ("derivatives", "arrays", "cuda_grid", "notebooks", "recursion", "symmetry", "whole_language", "sanitizers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = [f"test_{name}.py" for name in LONGEST]
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else len(first))
    named = any("::" in arg for arg in config.args)  # a test that is asked for by its name is run
    if not config.getoption("--all") and not named:
        left_out = set(items).difference(some_of(items))
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def some_of(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Of each test that is marked ``some(step)`` one of ``step`` variants, another one each time: with an inner
    parameter of as many values each of them has its turn. Of the others all that are not ``long``."""
    variants: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long") is not None:
            continue
        if item.get_closest_marker("some") is None:
            yield item
        else:
            variants.setdefault((item.path, item.originalname), []).append(item)  # type: ignore[attr-defined]
    for alike in variants.values():
        (step,) = alike[0].get_closest_marker("some").args  # type: ignore[union-attr]
        parts = [alike[k : k + step] for k in range(0, len(alike), step)]
        yield from (part[k % len(part)] for k, part in enumerate(parts))


#: What these files compile is numbers, recursion and data, or what a GPU's text is compared with: that is the same at
#: "-O1", for two thirds of a C compiler's time.
BRIEFLY = (
    "checks", "compiled_more", "cuda", "data_code", "derivatives", "encodings", "gpu", "language", "long_recursion",
    "persistent", "public_cases", "recursion", "sums_first", "textbook", "whole_language",
)  # fmt: skip
#: And these loops and matrices that passes take apart: that is the same as it is written, at "-O0", for half of it. All
#: others, those about loops that C compilers make vectors of and whole programs among them, compile as users do.
AS_WRITTEN = (
    "advice", "afterwards", "align", "alongside", "array_programs", "at_hand", "banded", "carry", "checkpoint",
    "columns", "common", "copies", "counted", "courses", "denormals", "eager", "edges", "eliminations", "exponents",
    "factors", "fast_loops", "few_inputs", "figure_8", "for", "grids", "guarded", "history", "identities", "in_place",
    "induction", "keep_calls", "known_zeros", "lasting", "linear_algebra", "lines", "log_sums", "monomials", "monotone",
    "neighbours", "nests", "no_iterations", "nothing_there", "one_changed", "one_element", "one_hot", "one_store",
    "optimise", "overlaps", "pairs", "parts_changed", "periods", "places", "points", "powers", "prefixes", "privatise",
    "ragged", "recurrent_jacobians", "recurring", "remember", "renew", "report", "reshaped", "rings", "rolling",
    "roundtrip", "rows_in_turn", "running", "scalar_replacement", "scalings", "searches", "settled", "shrinking",
    "simplify", "skips", "sorting", "sparse", "splits", "stages", "states_before", "straight_lines", "strands",
    "suffixes", "symmetry", "tables", "terms", "tiles", "transposes", "triangles", "twins", "unchanged", "unread",
    "whiles", "window_rows", "windows", "wraps",
)  # fmt: skip


@pytest.fixture(autouse=True)
def briefly(request: pytest.FixtureRequest) -> Iterator[None]:
    name = request.path.stem.removeprefix("test_")
    if not name.startswith((*BRIEFLY, *AS_WRITTEN)):
        yield
        return
    from hyad.codegen import build  # the environment is set

    limit = "LONGEST" if name.startswith(AS_WRITTEN) else "LONG"
    before = getattr(build, limit)
    setattr(build, limit, 0)
    yield
    setattr(build, limit, before)


class Patches(pytest.MonkeyPatch):
    """A test that puts something else in the place of a part of hyad is not given what was made with that part, nor
    are the tests behind it given what was made with the other."""

    def setattr(self, *args: Any, **kwargs: Any) -> None:
        self.forget()
        super().setattr(*args, **kwargs)

    def undo(self) -> None:
        if self._setattr:
            self.forget()
        super().undo()

    @staticmethod
    def forget() -> None:
        import memoised
        from hyad.program import recent  # the environment is set

        recent.forget()
        memoised.forget()


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    patches = Patches()
    yield patches
    patches.undo()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What has been collected stays to the end: the garbage collector need not look at it again and again, and need
    not look often: programs are trees, which go without it (a tenth of the time of most tests)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> Callable[[str, str], list[Any]]:
    """``chosen(test, parameter)``: the values that a parameter of a test of this module has in this run. What is made
    for all of them at once is made for no others."""

    def values(test: str, parameter: str) -> list[Any]:
        tests = [x for x in request.session.items if x.path == request.path and x.originalname == test]  # type: ignore
        return list(dict.fromkeys(x.callspec.params[parameter] for x in tests))  # type: ignore[attr-defined]

    return values


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: ``text`` must be what ``tests/golden/name`` holds."""

    def compare(name: str, text: str) -> None:
        path = TESTS / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: run pytest --update-golden and review it"
        assert text == path.read_text(encoding="utf-8")

    return compare
