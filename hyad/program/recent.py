"""What came of the last programs: compiled for another target, or asked what it costs, a model is optimised once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from ..core import Program
from .alike import same_programs

#: So many are remembered, the last ones.
MOST = 16

_known: deque[tuple[Hashable, Program, Program]] = deque(maxlen=MOST)


def once(key: Hashable, program: Program, make: Callable[[Program], Program]) -> Program:
    """``make(program)``, or what it gave for one that differs in the identity of its variables alone. ``key`` says what
    else that hangs on.

    Design decision: found by comparing programs, which ends where two first differ. A model is typed anew each time:
    what it reads of the names around it may have changed.
    """
    for entry in list(_known):
        if entry[0] == key and same_programs(entry[1], program):
            return entry[2]
    made = make(program)
    _known.append((key, program, made))
    return made


#: What is to be done where a primitive has a new meaning: models are compiled anew.
renewed: list[Callable[[], None]] = []


def forget() -> None:
    """Forget all, as when a pass has changed."""
    _known.clear()
