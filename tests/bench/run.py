"""The benchmark: every problem, every contender, one run; writes RESULTS.md and the plots beside it.

``python tests/bench/run.py [--only fk,ba,swell] [--quick] [--peers hyad,casadi] [--limit SECONDS] [--out FILE]``
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import adpeers
import adrun
import callers
import guarded
import ladder
import linear
import naive
import overhead
import peers
import recursion_peers
import swell
from limited import Failed, TooLong, script
from measure import Contender, Native, alternate, bank_of, build, hand_written, hand_written_dynamic
from recursion import ENCODED, WALKS, Found, Walk, corpus, encodings_race, native_race, points_of
from reference import GATE, error, reference
from report import (
    Row,
    encoding_lines,
    guarded_lines,
    ladder_lines,
    linear_lines,
    mode_lines,
    naive_lines,
    overhead_lines,
    plot_linear,
    plot_swell,
    problem_lines,
    problem_parts,
    recursion_lines,
    swell_tables,
    write,
)
from suite import FOLDER, PROBLEMS, Problem

OTHERS = ["recursion", "encodings", "ladder", "modes", "naive", "linear", "swell", "guarded", "overhead"]
SECTIONS = [p.name for p in PROBLEMS] + OTHERS + adrun.NAMES
CONTENDERS = list(dict.fromkeys([*peers.PEERS, *callers.CALLERS, *recursion_peers.CALLS, *adpeers.PEERS]))
TUNED = {"fk": FOLDER / "fk_tuned.c"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def with_bytecode() -> None:
    """Compile the checkout's modules, as pip does for a package that it installs: else Python would, within the time to
    derive, those that are imported only then."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for folder in ("hyad", "codegen", "macros"):
        compileall.compile_dir(Path(__file__).parents[2] / folder, quiet=2)


def failure(reason: Exception) -> str:
    """One line about what went wrong, without this machine's paths."""
    return re.sub(r"(/[\w.+-]+)+/", "", " ".join(str(reason).split()))[:160]


def race(
    problem: Problem,
    n: int,
    chosen: list[str],
    rounds: int,
    budget: float,
    limit: float,
    beaten: dict[str, int],
    folder: Path,
) -> list[Row]:
    """All contenders at one problem: made, checked against the reference, timed by turns.

    ``beaten`` has the contenders that did not finish at a smaller size of this problem, and that size; they are not
    tried again, and new ones are entered. What is compiled goes to ``folder``.
    """
    label = problem.label(n)
    say(f"{label}: reference")
    bank = bank_of(problem, n, np.random.default_rng(1))
    expected = reference(problem, n, bank[0])
    made = [build(hand_written(problem, n), problem, n, folder)]
    if "{n}" in problem.call:
        made.append(build(hand_written_dynamic(problem, n), problem, n, folder))
    if problem.name in TUNED:
        text = TUNED[problem.name].read_text()
        made.append(build(Contender("hand, tuned", text, problem.declaration, problem.call), problem, n, folder))
    sizes = {c.name: len(problem.hand.read_text()) for c in made}
    absent: dict[str, str] = {}
    for peer in [p for p in peers.PEERS if p in chosen]:
        if peer == "hyad-fixed" and "{n}" not in problem.call:
            continue  # the model's sizes are numbers already
        if peer in beaten:
            absent[peers.TITLES[peer]] = f"> {limit:.0f} s at n = {beaten[peer]} already"
            continue
        say(f"{label}: {peer}")
        try:
            record = script("peers.py", [peer, problem.name, n, folder / peer], limit)
        except (TooLong, Failed) as reason:
            absent[peers.TITLES[peer]] = failure(reason)
            if isinstance(reason, TooLong):
                beaten[peer] = n
            continue
        if record is None:
            continue  # as the contender before
        size = record.pop("source_bytes")
        made.append(Contender(source="", declaration="", call="", **record))
        sizes[made[-1].name] = size

    entries = {c.name: Native(c, problem, n, bank) for c in made}
    errors = {name: error(entry(0), expected) for name, entry in entries.items()}
    right = {name: entry for name, entry in entries.items() if errors[name] <= GATE}
    if "hand" not in right:
        raise RuntimeError(f"{label}: the hand-written derivative is wrong by {errors['hand']:.1e}")
    timings = alternate(right, rounds, budget)
    rows = []
    for c in made:
        if c.name not in right:
            rows.append(Row(c.name, note=f"wrong: relative error {errors[c.name]:.1e}"))
            continue
        t = timings[c.name]
        by_hand = c.name.startswith("hand")
        prepare = None if by_hand else c.prepare
        rows.append(
            Row(c.name, t.wall_ratio, t.cpu_ratio, t.nanoseconds, prepare, c.compile, sizes[c.name], c.machine_bytes)
        )
    rows += [Row(name, note=why) for name, why in absent.items()]
    for caller in [c for c in callers.CALLERS if c in chosen]:
        if caller in beaten:
            rows.append(Row(callers.TITLES[caller], note=f"> {limit:.0f} s at n = {beaten[caller]} already"))
            continue
        say(f"{label}: {caller}")
        arguments = [caller, problem.name, n, made[0].library, rounds, budget]
        try:
            found = script("callers.py", arguments, limit, expected.tobytes())
        except (TooLong, Failed) as reason:
            rows.append(Row(callers.TITLES[caller], note=failure(reason)))
            if isinstance(reason, TooLong):
                beaten[caller] = n
            continue
        if found["error"] > GATE:
            rows.append(Row(callers.TITLES[caller], note=f"wrong: relative error {found['error']:.1e}"))
            continue
        ratios = found["wall_ratio"], found["cpu_ratio"], found["nanoseconds"]
        rows.append(Row(callers.TITLES[caller], *ratios, found["prepare"]))
    return rows


def swell_series(chosen: list[str], quick: bool, limit: float) -> dict[str, list[tuple[int, Any]]]:
    """Contender -> (depth, what was found, or why nothing was), up to the first depth that fails."""
    series: dict[str, list[tuple[int, Any]]] = {}
    for contender, title in swell.TITLES.items():
        if contender.removesuffix("-loop") not in chosen:
            continue
        depths = swell.SYMPY_DEPTHS if contender == "sympy" else swell.DEPTHS
        series[title] = []
        for d in depths:
            if quick and contender == "sympy" and d > 12:
                break
            say(f"swell: {contender} {d}")
            try:
                series[title].append((d, script("swell.py", [contender, d], limit)))
            except (TooLong, Failed) as reason:
                series[title].append((d, failure(reason)))
                break
    return series


def overheads(rounds: int, quick: bool) -> dict[str, Any]:
    """The figures of ``overhead.py``; what could not be had is its reason."""
    found: dict[str, Any] = {}
    say("overhead")
    measurements = {
        "call": lambda: script("overhead.py", ["call", rounds, 0.002 if quick else 0.02], 120),
        "import": lambda: overhead.import_cost(rounds),
        "first": lambda: overhead.first_gradients(rounds),
    }
    for name, measurement in measurements.items():
        try:
            found[name] = measurement()
        except Exception as reason:  # the table says so, the other figures still count
            found[name] = failure(reason)
    return found


def recursion_tables(
    chosen: list[str], trees: Path | None, rounds: int, budget: float, limit: float
) -> tuple[dict[Walk, list[Found]], str]:
    """All contenders at each walk, and where the trees are from."""
    forest, where = corpus(trees)
    tables: dict[Walk, list[Found]] = {}
    for walk in WALKS:
        say(f"recursion: {walk.name}")
        with tempfile.TemporaryDirectory() as folder:
            rows, libraries = native_race(walk, points_of(walk, forest), rounds, budget, Path(folder))
            tables[walk] = rows
            for peer in [p for p in recursion_peers.CALLS if p in chosen]:
                say(f"recursion: {walk.name}: {peer}")
                count = recursion_peers.POINTS[peer]
                arguments = [peer, walk.name, count, *libraries.values(), rounds, budget, trees or ""]
                title = recursion_peers.TITLES[peer]
                try:
                    found = script("recursion_peers.py", arguments, limit)
                    wrong = found.pop("error")
                except (TooLong, Failed) as reason:
                    found, wrong = {"name": title, "note": failure(reason)}, 0.0
                if wrong > GATE:
                    found = {"name": title, "note": f"wrong: relative error {wrong:.1e}"}
                rows.append(Found(**found))
    return tables, where


def encoding_tables(trees: Path | None, rounds: int, budget: float) -> dict[Walk, list[Found]]:
    forest, _ = corpus(trees)
    tables = {}
    for walk in ENCODED:
        say(f"encodings: {walk.name}")
        with tempfile.TemporaryDirectory() as folder:
            tables[walk] = encodings_race(walk, points_of(walk, forest), rounds, budget, Path(folder))
    return tables


def linear_series(quick: bool, limit: float) -> dict[str, list[tuple[int, Any]]]:
    """Shape and mode -> (size, what was found, or why nothing was), up to the first size that fails."""
    series: dict[str, list[tuple[int, Any]]] = {}
    for shape in linear.SHAPES:
        for mode in linear.MODES:
            points = series[f"{shape}, {mode}"] = []
            for n in linear.SIZES[:-1] if quick else linear.SIZES:
                say(f"linear: {shape}, {mode}: {n}")
                try:
                    points.append((n, script("linear.py", [shape, mode, n], limit)))
                except (TooLong, Failed) as reason:
                    points.append((n, failure(reason)))
                    break
    return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = " ".join(SECTIONS) + " (ad-suite: " + " ".join(adrun.NAMES) + ")"
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by comma: " + names)
    parser.add_argument("--peers", default=",".join(CONTENDERS), help="contenders, by comma: " + " ".join(CONTENDERS))
    parser.add_argument("--quick", action="store_true", help="smallest sizes, short turns, a limit of 20 s")
    parser.add_argument("--limit", type=float, help="seconds that a generator may take (120)")
    parser.add_argument("--trees", type=Path, help="a file of parse trees (../shared/data/sst_dev_trees.txt)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "RESULTS.md")
    options = parser.parse_args()
    sections, chosen = options.only.replace("ad-suite", ",".join(adrun.NAMES)).split(","), options.peers.split(",")
    for given, known in ((sections, SECTIONS), (chosen, CONTENDERS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    limit = options.limit or (20.0 if options.quick else 120.0)
    rounds, budget = (9, 0.001) if options.quick else (15, 0.02)

    options.out.parent.mkdir(parents=True, exist_ok=True)
    with_bytecode()
    hyad = "hyad" in chosen
    tables: dict[tuple[Problem, int], list[Row]] = {}
    for problem in PROBLEMS:
        if problem.name in sections:
            beaten: dict[str, int] = {}
            for n in problem.sizes[:1] if options.quick else problem.sizes:
                with tempfile.TemporaryDirectory() as folder:
                    tables[problem, n] = race(problem, n, chosen, rounds, budget, limit, beaten, Path(folder))
                write(
                    options.out, problem_lines(tables, limit), problem_parts()
                )  # a long run that is broken off leaves its tables
    if hyad and "recursion" in sections:
        write(options.out, recursion_lines(*recursion_tables(chosen, options.trees, rounds, budget, limit)))
    if hyad and "encodings" in sections:
        write(options.out, encoding_lines(encoding_tables(options.trees, rounds, budget)))
    if hyad and "ladder" in sections:
        found = {}
        for e in ladder.EXPERIMENTS:
            say(f"ladder: {e.name}")
            with tempfile.TemporaryDirectory() as folder:
                found[e] = ladder.race(e, e.size, rounds, budget, Path(folder))
        write(options.out, ladder_lines(found))
    if hyad and "modes" in sections:
        points: dict[Any, list[tuple[int, Any]]] = {}
        for e in ladder.EXPERIMENTS:
            for n in e.sizes[:3] if options.quick else e.sizes:
                say(f"modes: {e.name}: {n}")
                with tempfile.TemporaryDirectory() as folder:
                    points.setdefault(e, []).append((n, ladder.modes(e, n, rounds, budget, Path(folder))))
        write(options.out, mode_lines(points))
    if hyad and "naive" in sections:
        found = {}
        for p in naive.PROGRAMS:
            say(f"naive: {p.name}")
            with tempfile.TemporaryDirectory() as folder:
                found[p] = naive.race(p, p.size, rounds, budget, Path(folder))
        write(options.out, naive_lines(found))
    if hyad and "linear" in sections:
        series = linear_series(options.quick, limit)
        plot_linear(series, options.out.parent)
        write(options.out, linear_lines(series))
    if "swell" in sections and (series := swell_series(chosen, options.quick, limit)):
        plot_swell(series, options.out.parent)
        write(options.out, swell_tables(series))
    if hyad and "guarded" in sections:
        say("guarded")
        wrong: Any
        try:
            wrong = script("guarded.py", [], 120)
        except (TooLong, Failed) as reason:
            wrong = failure(reason)
        write(options.out, guarded_lines(wrong, list(guarded.MODES)))
    if hyad and "overhead" in sections:
        write(options.out, overhead_lines(overheads(rounds, options.quick)))
    if hyad and not set(adrun.NAMES).isdisjoint(sections):
        array_peers = [p for p in adpeers.PEERS if p in chosen]
        for tables in adrun.run(sections, array_peers, options.quick, limit, say):
            write(options.out, adrun.lines(tables, options.out.parent), adrun.parts())
    say(f"wrote {options.out}")


if __name__ == "__main__":
    main()
