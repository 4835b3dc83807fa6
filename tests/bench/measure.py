"""Compiling contenders alike and timing them by turns.

A contender is C (or C++) text and the call to make. Its text is compiled on its own; the timing loop is a second
translation unit that walks over a small bank of points and calls it directly, so nothing is inlined and nothing
is hoisted, for hand-written, generated and hyad's code alike. ``alternate`` runs all contenders A B C A B C ...
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from suite import Problem, flatten

CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
FLAGS = ["-O3", "-march=native", "-fPIC"]  # strict: nothing of -ffast-math
PAGE = 512  # numbers in a page of memory
BANK = 2048  # numbers in a bank of points: it stays in the first cache

LOOP = """#define _POSIX_C_SOURCE 199309L
#include <time.h>
{declaration}
{arena}

static double seconds_of(clockid_t which)
{{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}}

int bench_run(long reps, long points, const double *bank, double *out, double *work, double *seconds)
{{
    const double *at = bank;
    long left = points;
    int status = 0;
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID), wall = seconds_of(CLOCK_MONOTONIC);
    for (long r = 0; r < reps; r++) {{
        {call};
        at += {stride};
        if (--left == 0) {{
            at = bank;
            left = points;
        }}
    }}
    seconds[0] = seconds_of(CLOCK_MONOTONIC) - wall;
    seconds[1] = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    (void)work;
    return status;
}}
"""


# What a C program of a function with an arena has: one, for all calls.
ARENA = """static hyad_arena arena;
size_t bench_held(void) { return hyad_held(&arena); }"""


@dataclass
class Contender:
    """Source text with the call to make: ``{NAME}`` for an input, ``{n}``, ``{out}`` and ``{work}`` stand in it.

    ``prepare`` is the seconds from the model to the text. ``compile``, the seconds from there to the function, is
    filled in by ``build``, as are ``machine_bytes`` and ``library``.
    """

    name: str
    source: str
    declaration: str
    call: str
    prepare: float = 0.0
    suffix: str = ".c"
    work: int = 0
    header: tuple[str, str] | None = None  # file name and text, where the source includes its own
    own_compile: float | None = None  # what the tool's own compiler run took, where it has one
    libraries: tuple[str, ...] = ()  # to link with, beside libm
    arena: bool = False  # its calls take memory from one
    compile: float = 0.0
    machine_bytes: int = 0
    library: str = ""


def build(contender: Contender, problem: Problem, n: int, folder: Path, flags: list[str] = FLAGS) -> Contender:
    """Compile a contender and its timing loop into one shared object in ``folder``."""
    names = {"n": str(n), "out": "out", "work": "work"}
    starts, stride = layout(problem, n)
    for given, at in zip(problem.inputs, starts):
        names[given.name] = f"(at + {at})" if given.shape(n) else f"at[{at}]"
    call = contender.call.format(**names)
    arena = ARENA if contender.arena else ""
    loop = LOOP.format(declaration=contender.declaration, arena=arena, call=call, stride=stride)
    return compiled(contender, loop, folder, flags)


def compiled(contender: Contender, loop_text: str, folder: Path, flags: Sequence[str] = FLAGS) -> Contender:
    """Compile a contender's text and a loop that calls it, each on its own, into one shared object in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / contender.name.replace(" ", "_").replace(",", "")
    source, loop = stem.with_suffix(contender.suffix), stem.with_name(stem.name + "_loop.c")
    source.write_text(contender.source)
    if contender.header:
        (folder / contender.header[0]).write_text(contender.header[1])
    loop.write_text(loop_text)

    compiler = CXX if contender.suffix == ".cpp" else CC
    body, timing, library = stem.with_suffix(".o"), loop.with_suffix(".o"), stem.with_suffix(".so")
    run([CC, *FLAGS, "-c", str(loop), "-o", str(timing)])
    start = time.perf_counter()
    run([compiler, *flags, "-c", str(source), "-o", str(body)])
    run([compiler, "-shared", str(body), str(timing), *contender.libraries, "-lm", "-o", str(library)])
    spent = time.perf_counter() - start
    contender.compile = spent if contender.own_compile is None else contender.own_compile
    contender.machine_bytes = text_bytes(body)
    contender.library = str(library)
    return contender


def layout(problem: Problem, n: int) -> tuple[list[int], int]:
    """Where each input of a point starts in the bank, and how far it is to the next point: whole cache lines."""
    starts, at = [], 0
    for given in problem.inputs:
        starts.append(at)
        at += -(-given.count(n) // 8) * 8
    return starts, at


def aligned(count: int) -> np.ndarray:
    """Zeros that start at a page, as a C program's big arrays do, and all contenders' alike: where the last store of a
    ``memset`` of 800 bytes goes across the end of a page, the Hessian of ten numbers takes 2.6 times as long."""
    raw = np.zeros(count + PAGE)
    return raw[(-raw.ctypes.data // 8) % PAGE :][:count]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")
    return done.stdout


def text_bytes(body: Path) -> int:
    """Machine code and constants in an object file."""
    return int(run(["size", str(body)]).splitlines()[1].split()[0])


def hand_written(problem: Problem, n: int) -> Contender:
    """The yardstick, with the size known to its compiler as it is to every generator of straight-line code."""
    text = problem.hand.read_text()
    if "{n}" not in problem.call:
        return Contender("hand", text, problem.declaration, problem.call)
    general = problem.call.partition("(")[0]
    kept = problem.declaration.replace(general, "hand_fixed").replace("long long n, ", "").replace(", long long n", "")
    inner = problem.declaration.replace("const double *", "").replace("double *", "").replace("long long ", "")
    inner = inner.replace("void ", "").replace("(n", f"({n}").replace(", n", f", {n}")
    fixed = f"{text}\n{kept[:-1]}\n{{\n    {inner}\n}}\n"
    call = problem.call.replace(general, "hand_fixed").replace("{n}, ", "").replace(", {n}", "")
    return Contender("hand", fixed, kept, call)


def hand_written_dynamic(problem: Problem, n: int) -> Contender:
    """The same with the size as a run-time number."""
    return Contender("hand, n dynamic", problem.hand.read_text(), problem.declaration, problem.call)


def bank_of(problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Points to walk over, one a row: as many as the bank holds, at most 64."""
    first = flatten(problem.sample(n, rng))
    count = max(1, min(64, BANK // first.size))
    return np.stack([first, *(flatten(problem.sample(n, rng)) for _ in range(count - 1))])


class Native:
    """A built contender: call it for a derivative, ask it for the seconds of many."""

    def __init__(self, contender: Contender, problem: Problem, n: int, bank: np.ndarray):
        starts, self.stride = layout(problem, n)
        self.points, self.bank = len(bank), aligned(len(bank) * self.stride)
        at = 0
        for given, start in zip(problem.inputs, starts):
            size = given.count(n)
            self.bank.reshape(self.points, self.stride)[:, start : start + size] = bank[:, at : at + size]
            at += size
        self.out, self.work = aligned(problem.results(n)), aligned(max(1, contender.work))
        library = ctypes.CDLL(contender.library)
        self.entry, self.arena = library.bench_run, library.bench_held if contender.arena else None
        self.entry.argtypes = [ctypes.c_long, ctypes.c_long, *[ctypes.c_void_p] * 4]

    def __call__(self, row: int) -> np.ndarray:
        """The derivative at one point of the bank."""
        self.out.fill(np.nan)
        self._run(1, 1, self.bank[row * self.stride :])
        return self.out.copy()

    def seconds(self, reps: int) -> tuple[float, float]:
        """Wall and CPU seconds of ``reps`` calls."""
        return self._run(reps, self.points, self.bank)

    def held(self) -> int:
        """The bytes of the arena, all calls so far."""
        if self.arena is None:
            return 0
        self.arena.restype = ctypes.c_size_t
        return self.arena()

    def _run(self, reps: int, points: int, bank: np.ndarray) -> tuple[float, float]:
        spent = (ctypes.c_double * 2)()
        status = self.entry(reps, points, bank.ctypes.data, self.out.ctypes.data, self.work.ctypes.data, spent)
        if status:
            raise RuntimeError(f"the compiled function failed its check number {status}")
        return spent[0], spent[1]


class PythonCall:
    """A contender that can only be called from Python; ``call(row)`` computes, and waits for, one derivative."""

    def __init__(self, call: Callable[[int], object], points: int):
        self.call, self.points = call, points

    def seconds(self, reps: int) -> tuple[float, float]:
        call, points = self.call, self.points
        cpu, wall = time.process_time(), time.perf_counter()
        for r in range(reps):
            call(r % points)
        return time.perf_counter() - wall, time.process_time() - cpu


@dataclass(frozen=True)
class Timing:
    """Nanoseconds a call, and the median over the rounds of its ratio to the yardstick of the same round. ``wall`` and
    ``cpu`` are the seconds a call of each round."""

    nanoseconds: float
    wall_ratio: float
    cpu_ratio: float
    wall: tuple[float, ...] = ()
    cpu: tuple[float, ...] = ()

    def over(self, other: Timing) -> tuple[float, float]:
        """The ratio to another contender of the same rounds, on the wall clock and in CPU time."""
        return median_ratio(self.wall, other.wall), median_ratio(self.cpu, other.cpu)


def median_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b))


class Timed(Protocol):
    """What can be timed: wall and CPU seconds of so many calls."""

    def seconds(self, reps: int) -> tuple[float, float]: ...


def alternate(contenders: Mapping[str, Timed], rounds: int, budget: float) -> dict[str, Timing]:
    """Time all contenders by turns; the first is the yardstick. ``budget`` is the seconds of one turn."""
    reps = {}
    for name, contender in contenders.items():
        count = 1
        while (spent := contender.seconds(count)[0]) < budget / 8:
            count = max(2 * count, min(64 * count, int(count * budget / 8 / max(spent, 1e-7))))
        reps[name] = max(1, int(count * budget / spent))
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            w, c = contender.seconds(reps[name])
            wall[name].append(w / reps[name])
            cpu[name].append(c / reps[name])
    yardstick = next(iter(contenders))
    return {
        name: Timing(
            1e9 * statistics.median(wall[name]),
            median_ratio(wall[name], wall[yardstick]),
            median_ratio(cpu[name], cpu[yardstick]),
            tuple(wall[name]),
            tuple(cpu[name]),
        )
        for name in contenders
    }
