"""Memory of a derivative: what a call reads, writes and works in, in bytes.

The workspace is what the caller is asked for, or what its arena holds after a call; the frames of the functions are
what the compiler says that they take (``-fstack-usage``, at the flags that are timed). Inputs and results are the same
for all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import CC, FLAGS, Contender, run
from suite import Problem


@dataclass(frozen=True)
class Memory:
    """Bytes of inputs and results, of workspace, and of the functions' frames, all together."""

    given: int
    workspace: int
    frames: int

    @property
    def own(self) -> int:
        return self.workspace + self.frames

    @property
    def whole(self) -> int:
        return self.given + self.own


def memory_of(
    contender: Contender, problem: Problem, n: int, flags: Sequence[str] | None = FLAGS, arena: int = 0
) -> Memory:
    """The memory of a contender whose text is C, with the bytes of its ``arena``; without ``flags`` all but the frames.
    What recursion takes of the stack is one frame of each function."""
    given = sum(i.count(n) for i in problem.inputs) + problem.results(n)
    return Memory(8 * given, 8 * contender.work + arena, 0 if flags is None else frames(contender, flags))


def frames(contender: Contender, flags: Sequence[str] = FLAGS) -> int:
    """What the functions of a contender's text take of the stack; raises ``ValueError`` where only a run knows."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.c"
        source.write_text(contender.source)
        if contender.header:
            (Path(folder) / contender.header[0]).write_text(contender.header[1])
        run([CC, *flags, "-fstack-usage", "-c", str(source), "-o", str(source.with_suffix(".o"))])
        total = 0
        for line in source.with_suffix(".su").read_text().splitlines():
            place, size, how = line.split("\t")
            if how == "dynamic":
                raise ValueError(f"{place} takes as much of the stack as its arguments say")
            total += int(size)
        return total


def times(ours: Memory | None, theirs: Memory | None) -> float | None:
    """How much more memory one takes than another, all that a call touches counted."""
    return None if ours is None or theirs is None else ours.whole / theirs.whole
