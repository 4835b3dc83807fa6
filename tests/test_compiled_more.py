"""More of random programs in compiled code: second derivatives, encodings, the Python target, define by run, the
extension (see ``compiled.py``; ``test_compiled_programs.py`` is the other part of the seeds)."""

from __future__ import annotations

import os

import pytest

from compiled import examine, report, subject
from hyad.codegen.c import print_c
from hyad.model import derived
from hyad.program.values import ENCODINGS

COUNT = int(os.environ.get("HYAD_PROPERTY_COMPILED", "150"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0")) + 1_000_000
CHUNK = 50


@pytest.mark.long
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_compiled_programs_agree_however_they_are_run(first: int) -> None:
    found = examine(range(first, min(first + CHUNK, FIRST + COUNT)), extra=True)
    assert not any(s.wrong for s in found), report(found, extra=True)


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS[1:])
def test_an_encoding_is_another_program(encoding: str) -> None:
    """What is compared is not the same code twice."""
    others = 0
    for seed in range(40):
        s = subject(seed)
        made = [derived("value-and-grad", s.model, None, e) for e in ("record", encoding)]
        one, other = (print_c(m.optimised(m.specs(s.point)), name="f").source for m in made)
        others += one != other
    assert others > 2
