"""The AD suite's part of the benchmark: every objective at its sizes, under strict and under fast flags, with tables
and plots. ``run.py`` calls ``run`` and ``lines``."""

from __future__ import annotations

import ctypes
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import adpeers
from adsuite import (
    NESTED_MODES,
    OBJECTIVES,
    Objective,
    Point,
    Size,
    bank_of,
    blocks_by_steps,
    jacobian_by_steps,
    problem_of,
    slope,
)
from cores import there_and_back
from hyad_contender import compiler_seconds, empty_cache, how_to_call, hyad, openmp_settings
from limited import Failed, OwnClock, TooLong, script
from measure import FLAGS, Contender, Native, alternate, build
from memory import memory_of, times
from reference import GATE, error

NAMES = [o.name for o in OBJECTIVES]
FAST = ["-O3", "-march=native", "-fPIC", "-ffast-math"]  # objects only: nothing is linked with -ffast-math
SPENT: dict[str, tuple[float, float]] = {}  # what a text of C took when it was made: it is compiled once in a process
TIMING = 90.0  # seconds that a tool may take once it is prepared
DIRECTIONS = 3  # along which the hand-written derivative is checked at sizes that are timed


@dataclass(frozen=True)
class Row:
    """One contender's derivative, times the hand-written primal: strict, fast over fast, and fast over strict."""

    name: str
    strict: float | None = None
    cpu: float | None = None
    fast: float | None = None
    fast_strict: float | None = None
    microseconds: float | None = None
    prepare: float | None = None
    compile: float | None = None
    kilobytes: float | None = None
    note: str = ""
    memory: float | None = None  # all that a call touches, times that of the derivative by hand


Table = tuple[Objective, Size, str, list[Row]]


def hand(objective: Objective, size: Size, name: str) -> Contender:
    """The hand-written primal or derivative."""
    declaration, call, room = objective.by_hand[name]
    for key, count in size.items():
        call = call.replace("{" + key + "}", str(count))
    work = int(eval(room, {"__builtins__": {}}, dict(size)))
    return Contender(f"hand {name}", objective.source, declaration, call, work=work)


def contender(
    objective: Objective,
    size: Size,
    point: Point,
    derivative: str,
    fixed: bool = False,
    math: str = "libm",
    threads: int = 1,
) -> Contender:
    """hyad's derivative, from the model's text to the loaded function, into an empty cache. ``fixed`` writes sizes into
    the annotations; ``math`` and ``threads`` are ``hyad.compile``'s."""
    text = objective.models.read_text()
    for name in objective.fixed if fixed else ():
        while text != (again := re.sub(rf"(#\^ \([^)]*?\s){name}(?=[\s)])", rf"\g<1>{size[name]}", text)):
            text = again
    with empty_cache() as folder:
        path = folder / "models.hy"
        path.write_text(text)
        start, before = time.perf_counter(), compiler_seconds()
        made = objective.derivatives[derivative](hyad.load(path))
        f = hyad.compile(made, target="c", math=math, threads=threads).cfunction
        spent = time.perf_counter() - start
        compiler = min(spent, compiler_seconds() - before)
    spent, compiler = SPENT.setdefault(f.source, (spent, compiler))
    declaration, call, work = how_to_call(f, problem_of(objective, size, point, derivative), 0, point)
    header, name = (f"{f.name}.h", f.header), title(fixed, math, threads)
    return Contender(
        name,
        f.source,
        declaration,
        call,
        spent - compiler,
        work=work,
        header=header,
        own_compile=compiler,
        arena=f.arena,
    )


def title(fixed: bool, math: str, threads: int = 1) -> str:
    parts = ["sizes fixed"] * fixed + ["vector math"] * (math == "vector") + ["two threads"] * (threads == 2)
    return ", ".join(["hyad", *parts])


def race(objective: Objective, size: Size, derivative: str, peers: list[str], how: Any, folder: Path) -> list[Row]:
    """All contenders at one size. ``how``: rounds, seconds of a turn, seconds that anything may take to prepare."""
    rounds, budget, limit = how
    point = objective.point(np.random.default_rng(adpeers.SEED), **size)
    bank, made, rows = bank_of(point), {}, []
    problems = {name: problem_of(objective, size, point, name) for name in ("primal", derivative)}
    names = ["primal", derivative] if derivative in objective.by_hand else ["primal"]
    contenders = {f"hand {name}": (hand(objective, size, name), problems[name]) for name in names}
    notes: dict[str, str] = {}
    sources = set()
    for fixed in (False, True) if objective.fixed else (False,):
        for math in ("libm", "vector"):
            try:
                made_one = contender(objective, size, point, derivative, fixed, math)
                if made_one.source not in sources:  # without an exp there is nothing to take from elsewhere
                    contenders[made_one.name] = (made_one, problems[derivative])
                    sources.add(made_one.source)
            except Exception as reason:  # a table without it still says why
                notes[title(fixed, math)] = " ".join(str(reason).split())[:160]
    threaded = title(False, "libm", 2)
    if objective.threads and title(False, "libm") in contenders:
        c = contender(objective, size, point, derivative, threads=2)
        with openmp_settings():  # as where hyad loads it
            ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)  # what is built here is not linked with it
        c = build(c, problems[derivative], 0, folder / "threads", [*FLAGS, "-fopenmp"])
        made[threaded, "strict"] = Native(c, problems[derivative], 0, bank), c
    for flags, name in ((FLAGS, "strict"), (FAST, "fast")):
        for key, (c, problem) in contenders.items():
            c = build(replace(c), problem, 0, folder / name, flags)
            made[key, name] = Native(c, problem, 0, bank), c
    yardstick = made["hand primal", "strict"][0]
    if derivative in objective.by_hand:
        expected = made[f"hand {derivative}", "strict"][0](0)
        check(objective, point, derivative, expected)
    else:
        expected = yardstick(0)
    right = {}
    for key, (native, _) in made.items():
        gate = GATE if key[1] == "strict" else 1e-9
        wrong = error(native(0), expected) if not key[0].endswith("primal") else 0.0
        if wrong <= gate:
            right[key] = native
        elif key[0].startswith("hyad"):
            notes.setdefault(key[0], f"wrong, {key[1]}: relative error {wrong:.1e}")
    timings = alternate({("hand primal", "strict"): yardstick, **right}, rounds, budget)
    memory = {
        key: memory_of(c, problem, 0, arena=made[key, "strict"][0].held()) for key, (c, problem) in contenders.items()
    }
    for key, (c, _) in contenders.items():
        if (key, "strict") not in right:
            continue
        t, fast = timings[key, "strict"], timings.get((key, "fast"))
        base = timings["hand primal", "fast"].cpu_ratio
        built = made[key, "strict"][1]
        rows.append(
            Row(
                key,
                t.wall_ratio,
                t.cpu_ratio,
                fast and fast.cpu_ratio / base,
                fast and fast.cpu_ratio,
                t.nanoseconds / 1000,
                c.prepare if key.startswith("hyad") else None,
                built.compile,
                memory[key].own / 1000,
                memory=times(memory[key], memory.get(f"hand {derivative}")) if key.startswith("hyad") else None,
            )
        )
    if (threaded, "strict") in right:  # on the wall clock: the time of both threads would be nobody's
        one, two = title(False, "libm"), threaded
        pair = alternate({name: right[name, "strict"] for name in (one, two)}, rounds, budget)
        alone, t = pair[one], pair[two]
        gain = f"{alone.wall_ratio / t.wall_ratio:.2f} times as fast as on one thread, on the wall clock"
        apart = f"a line of the cache goes to the other processor and back in {there_and_back(folder):.0f} ns"
        rows.append(Row(threaded, note=f"{gain}; {apart}"))
    rows += [Row(name, note=note.replace("|", "/")) for name, note in notes.items()]
    library = made["hand primal", "strict"][1].library
    for peer in peers:
        try:
            given = [peer, objective.name, json.dumps(size), derivative, library, rounds, budget, limit]
            one = {**os.environ, "OMP_NUM_THREADS": "1"}
            found = script("adpeers.py", given, limit + TIMING, expected.tobytes(), one)
        except TooLong as reason:
            own = isinstance(reason, OwnClock)
            note = f"> {limit:.0f} s to its first result" if own else f"> {limit + TIMING:.0f} s to be timed"
            rows.append(Row(adpeers.TITLES[peer], note=note))
            continue
        except Failed as reason:
            text = re.sub(r"^(NotImplemented|ModuleNotFound)Error: ", "", " ".join(str(reason).split()))
            rows.append(Row(adpeers.TITLES[peer], note=text[:120].replace("|", "/")))
            continue
        if found["error"] > GATE:
            rows.append(Row(adpeers.TITLES[peer], note=f"wrong: relative error {found['error']:.1e}"))
            continue
        ratios = {"strict": found["wall_ratio"], "cpu": found["cpu_ratio"], "microseconds": found["nanoseconds"] / 1000}
        rows.append(Row(adpeers.TITLES[peer], **ratios, prepare=found["prepare"], kilobytes=found["kilobytes"]))
    return rows


def check(objective: Objective, point: Point, derivative: str, found: np.ndarray) -> None:
    """The hand-written derivative against the primal's complex steps, along a few directions (all blocks)."""
    if derivative == "blocks":
        wrong = error(found, blocks_by_steps(point))
    elif derivative == "jacobian":
        wrong = error(found, jacobian_by_steps(objective, point))
    elif derivative == "diagonal":
        wrong = 0.0  # twice the number of a centre's points: small sizes are tested
    else:
        rng, wrong = np.random.default_rng(5), 0.0
        for _ in range(DIRECTIONS):
            direction = rng.normal(size=found.size)
            expected = slope(objective, point, direction)
            wrong = max(wrong, abs(direction @ found - expected) / np.linalg.norm(direction) / np.linalg.norm(found))
    if wrong > GATE:
        raise RuntimeError(f"{objective.name}: the hand-written {derivative} is wrong by {wrong:.1e}")


def row_name(objective: Objective, size: Size, derivative: str) -> str:
    return f"{objective.label(size)}, {derivative}"


def heading(objective: Objective, size: Size, derivative: str) -> str:
    return f"{objective.label(size)}: {objective.title}; {derivative}"


def parts() -> dict[str, str]:
    """What the section consists of: the rows of its first table, and the headings of the tables below."""
    all_of = [(o, size, d) for o in OBJECTIVES for size in (*o.sizes, *o.large) for d in o.derivatives]
    return {row_name(*part): heading(*part) for part in all_of}


def lines(tables: list[Table], folder: Path) -> list[str]:
    """The section of RESULTS.md; the plots go to ``folder``."""
    from report import cell, table
    from report import ratio as rounded

    def ratio(value: float | None) -> str:
        return cell(value, ".4f") if value is not None and value < 0.05 else rounded(value)

    if not tables:
        return []
    out = ["## The AD suite", ""]
    out += [
        "R: the time of the derivative, times that of the hand-written primal of the same flags and run (`-ffast-math`",
        "for fast), in CPU time; fast / strict: the derivative with fast flags against the strict primal. The",
        "libraries are timed through their own calls, against the strict primal. Memory: of hyad and by hand the",
        "workspace and the stack, of the libraries what the process grew by; in the first table, with inputs and",
        "results, as a ratio to the derivative by hand. The hand-written derivatives were checked by complex",
        "steps in extended precision. The first table has the best of hyad's rows with the C library's functions, and",
        'that with `math="vector"`. At the last sizes of an objective, those of its target, libraries were not timed.',
        "",
    ]
    head = [
        "objective",
        "R, strict",
        "R, vector math",
        "R, fast",
        "fast / strict",
        "target",
        "best peer",
        "memory / by hand",
        "derive + print, s",
        "compile, s",
    ]
    summary = []
    for objective, size, derivative, rows in tables:
        mine = [r for r in rows if r.name.startswith("hyad")]
        plain = [r for r in mine if "vector" not in r.name]
        vector = [r.cpu for r in mine if r not in plain and r.cpu is not None]
        ours = min(plain, key=lambda r: r.cpu or float("inf"))  # those with a note have none
        others = [r for r in rows if r.strict is not None and r not in mine and r.name != "hand primal"]
        best = min(others, key=lambda r: r.cpu or 0, default=None)
        last = [ratio(min(vector, default=None)), ratio(ours.fast), ratio(ours.fast_strict)]
        figures = [ours.note, "", "", ""] if ours.note else [ratio(ours.cpu), *last]
        peer = f"{best.name} {ratio(best.cpu)}" if best else ""
        seconds = ["" if t is None else f"{t:.2f}" for t in (ours.prepare, ours.compile)]
        room = "" if ours.memory is None else f"{ours.memory:.2f}"
        name = row_name(objective, size, derivative)
        summary.append([name, *figures, f"{objective.target:g}", peer, room, *seconds])
    out += table(head, summary)
    for objective in dict.fromkeys(t[0] for t in tables):
        shown = [t for t in tables if t[0] is objective and t[1] in objective.sizes]
        if objective.axis and plot(objective, shown, folder):
            out += [f"![{objective.name}](ad-{objective.name}.svg)", ""]
    head = [
        "contender",
        "R, wall",
        "R, CPU",
        "R, fast",
        "fast / strict",
        "us",
        "prepare, s",
        "compile, s",
        "memory, kB",
    ]
    for objective, size, derivative, rows in tables:
        out += [f"### {heading(objective, size, derivative)}", ""]
        body = []
        for r in rows:
            if r.note:
                body.append([r.name, r.note, *[""] * 7])
                continue
            seconds = ["" if t is None else f"{t:.2f}" for t in (r.prepare, r.compile)]
            memory = "" if r.kilobytes is None else f"{r.kilobytes:.0f}"
            figures = [ratio(r.strict), ratio(r.cpu), ratio(r.fast), ratio(r.fast_strict)]
            body.append([r.name, *figures, f"{r.microseconds:.1f}", *seconds, memory])
        out += table(head, body)
    return out


def plot(objective: Objective, tables: list[Table], folder: Path) -> bool:
    """Time against size, and R against size; nothing where there is one size only."""
    if len({t[1][objective.axis] for t in tables}) < 2:
        return False
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "hyad"  # the same figures give the same file
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    first = tables[0][2]
    names = dict.fromkeys(r.name for t in tables if t[2] == first for r in t[3] if r.strict is not None)
    for name, marker in zip(names, "os^DvP*"):
        found = [
            (t[1][objective.axis], r) for t in tables if t[2] == first for r in t[3] if r.name == name and not r.note
        ]
        left.loglog([n for n, _ in found], [r.microseconds for _, r in found], marker=marker, label=name)
        if name != "hand primal":
            right.loglog([n for n, _ in found], [r.strict for _, r in found], marker=marker, label=name)
    left.set_ylabel("microseconds")
    right.set_ylabel("times the hand-written primal")
    for axes in (left, right):
        axes.set_xlabel(objective.axis)
        axes.grid(True, alpha=0.3)
    left.legend(fontsize=7)
    figure.suptitle(f"{objective.name}: {first}")
    figure.tight_layout()
    figure.savefig(folder / f"ad-{objective.name}.svg", metadata={"Date": None})
    plt.close(figure)
    return True


def run(chosen: list[str], peers: list[str], quick: bool, limit: float, say: Any) -> Iterator[list[Table]]:
    """Race the chosen objectives; what has been found so far, after each of them."""
    tables: list[Table] = []
    how = (9, 0.005, limit) if quick else (11, 0.05, limit)
    for objective in OBJECTIVES:
        if objective.name not in chosen:
            continue
        for size in objective.sizes[:1] if quick else (*objective.sizes, *objective.large):
            for derivative in objective.derivatives:
                say(f"{objective.label(size)}: {derivative}")
                others = [] if size in objective.large else peers
                if derivative in NESTED_MODES:  # written for one peer alone: they are derivatives of derivatives
                    others = [peer for peer in others if peer == "enzyme_ad"]
                with tempfile.TemporaryDirectory() as folder:
                    rows = race(objective, size, derivative, others, how, Path(folder))
                tables.append((objective, size, derivative, rows))
        yield tables
