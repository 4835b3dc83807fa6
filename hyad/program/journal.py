"""What the optimiser may do, and a record of what it does.

Names of optimisations are those of the passes (``optimise.PIPELINE``), of the rules (``rules.hy``), and ``rules`` (all
of them), ``sharing`` (common subexpressions) and ``hoisting`` (out of loops), which the builder does,
``recursion``, which the specialiser does, ``rolling``, which ``unfold`` does, ``remembering`` and ``checkpoint``, which
reverse mode does, and those that are done for a GPU alone (``switches.ON_A_GPU``). All are context variables, so that a
program is made under one setting from start to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from ..errors import Span

#: The optimisations that are switched off.
OFF: ContextVar[frozenset[str]] = ContextVar("OFF", default=frozenset())

#: What has fired, in order: its name and the place of the form. None: nobody asks.
FIRED: ContextVar[list[tuple[str, Span | None]] | None] = ContextVar("FIRED", default=None)


#: What is said of a form that is left as it is; the rest of what a pass does is forgotten where nothing comes of it.
LEFT = frozenset({"too-long"})


class Kept(NamedTuple):
    """A loop that keeps few of its states for reverse mode: its place, how many steps and states there are (affine, see
    ``builder``; steps None: the loop itself finds out), and whether the first run of it keeps states already."""

    span: Span | None
    steps: Any
    snapshots: Any
    first: bool


#: The loops that keep few of their states. None: nobody asks.
KEPT: ContextVar[list[Kept] | None] = ContextVar("KEPT", default=None)


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Inside, these optimisations are switched off."""
    token = OFF.set(OFF.get() | frozenset(names))
    try:
        yield
    finally:
        OFF.reset(token)


def on(name: str) -> bool:
    """Whether an optimisation is not switched off."""
    return name not in OFF.get()


def fires(name: str, span: Span | None = None) -> None:
    """Put on record that an optimisation has fired."""
    fired = FIRED.get()
    if fired is not None:
        fired.append((name, span))


@contextmanager
def recorded() -> Iterator[list[tuple[str, Span | None]]]:
    """Inside, what fires is added to the list that is given."""
    fired: list[tuple[str, Span | None]] = []
    token = FIRED.set(fired)
    try:
        yield fired
    finally:
        FIRED.reset(token)


@contextmanager
def keeping() -> Iterator[list[Kept]]:
    """Inside, each loop that keeps few of its states is added to the list that is given."""
    kept: list[Kept] = []
    token = KEPT.set(kept)
    try:
        yield kept
    finally:
        KEPT.reset(token)
