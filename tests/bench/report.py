"""What was measured, as Markdown tables and SVG plots."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from measure import CC, FLAGS
from suite import Problem

WITHIN = 1.0  # seconds to derive, print and compile


@dataclass(frozen=True)
class Row:
    """One contender at one problem; what does not apply is None, ``note`` says why there is no figure at all."""

    name: str
    wall: float | None = None
    cpu: float | None = None
    nanoseconds: float | None = None
    prepare: float | None = None
    compile: float | None = None
    source_bytes: int | None = None
    machine_bytes: int | None = None
    note: str = ""


def cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|" + "|".join("---" if k == 0 else "---:" for k in range(len(head))) + "|"
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows), ""]


def ratio(value: float | None) -> str:
    return cell(value, ".2f" if value is None or value < 100 else ".0f")


def problem_table(problem: Problem, n: int, rows: list[Row]) -> list[str]:
    title = f"### {problem.label(n)}: {problem.title}"
    head = ["contender", "x hand", "x hand, CPU", "ns", "derive + print, s", "compile, s", "C, kB", "machine code, kB"]
    lines = []
    for row in rows:
        if row.note:
            lines.append([row.name, row.note.replace("|", "/"), "", "", "", "", "", ""])
            continue
        nanoseconds = cell(row.nanoseconds, ".1f" if row.nanoseconds and row.nanoseconds < 1000 else ".0f")
        kilobytes = [cell(b and b / 1000, ".1f") for b in (row.source_bytes, row.machine_bytes)]
        seconds = [cell(row.prepare, ".3f"), cell(row.compile, ".3f")]
        lines.append([row.name, ratio(row.wall), ratio(row.cpu), nanoseconds, *seconds, *kilobytes])
    return [title, "", *table(head, lines)]


def summary(tables: dict[tuple[Problem, int], list[Row]]) -> list[str]:
    """hyad against what it is to reach: the better of its two rows, and the best of the other generators."""
    lines = []
    for (problem, n), rows in tables.items():
        ours = [r for r in rows if r.name.startswith("hyad")]
        timed = [r for r in ours if r.wall is not None]
        if not ours or n not in problem.targets:
            continue
        target = problem.targets[n]
        others = [r for r in rows if r.wall is not None and not r.name.startswith(("hyad", "hand"))]
        best = min(others, key=lambda r: r.wall or 0, default=None)
        peer = f"{best.name} {ratio(best.wall)}" if best else ""
        if not timed:
            lines.append([problem.label(n), "none", f"{target}", "", "no", peer])
            continue
        row = min(timed, key=lambda r: r.wall or 0)
        spent = (row.prepare or 0) + (row.compile or 0)
        met = "yes" if (row.wall or 0) <= target and spent <= WITHIN else "no"
        lines.append([problem.label(n), f"{ratio(row.wall)} ({row.name})", f"{target}", f"{spent:.2f}", met, peer])
    if not lines:
        return []
    head = ["problem", "hyad, x hand", "target", f"derive + print + compile, s (target {WITHIN:g})", "met", "best peer"]
    return ["## Summary", "", *table(head, lines)]


def swell_tables(series: dict[str, list[tuple[int, Any]]]) -> list[str]:
    lines = ["## Swell: the gradient of the logistic map at depth d", ""]
    lines += ["![seconds to derive and print](swell-seconds.svg)", "", "![bytes of C](swell-bytes.svg)", ""]
    rows = []
    for name, points in series.items():
        for d, found in points:
            if isinstance(found, str):
                rows.append([name, str(d), found.replace("|", "/"), "", "", ""])
                continue
            right = cell(found.get("error"), ".1e")
            compiled = cell(found.get("compile"), ".2f")
            rows.append(
                [name, str(d), f"{1000 * found['seconds']:.1f}", f"{found['bytes'] / 1000:.1f}", compiled, right]
            )
    lines += table(["contender", "d", "derive + print, ms", "C, kB", "compile and call, s", "relative error"], rows)
    for name, points in series.items():
        found = [(d, f["seconds"]) for d, f in points if isinstance(f, dict) and d >= 1000]
        if len(found) == 2:
            power = log(found[1][1] / found[0][1]) / log(found[1][0] / found[0][0])
            lines.append(f"{name}: from d = {found[0][0]} to {found[1][0]} the time grows as d^{power:.2f}.")
    return [*lines, ""]


def plot_swell(series: dict[str, list[tuple[int, Any]]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "hyad"  # the same figures give the same file
    for quantity, label in (("seconds", "seconds to derive and print"), ("bytes", "bytes of C")):
        figure, axes = plt.subplots(figsize=(6, 4))
        for (name, points), marker in zip(series.items(), "os^Dv"):
            found = [(d, f[quantity]) for d, f in points if isinstance(f, dict)]
            if found:
                axes.loglog(*zip(*found), marker=marker, label=name)
        axes.set_xlabel("depth d of the logistic map")
        axes.set_ylabel(label)
        axes.grid(True, alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"swell-{quantity}.svg", metadata={"Date": None})
        plt.close(figure)


def guarded_lines(wrong: Any, modes: list[str]) -> list[str]:
    lines = ["## Guarded functions", "", "On the guard, beyond it and inside; modes: " + "; ".join(modes) + ".", ""]
    if isinstance(wrong, str):
        return [*lines, wrong, ""]
    rows = [[name, "right in every mode" if not found else "<br>".join(found)] for name, found in wrong.items()]
    return [*lines, *table(["model", "first and second derivatives"], rows)]


def overhead_lines(costs: dict[str, Any]) -> list[str]:
    rows: list[list[str]] = []

    def add(name: str, found: Any, figures: dict[str, tuple[Any, str]]) -> None:
        if isinstance(found, str):
            rows.append([name, found.replace("|", "/"), ""])
        else:
            rows.extend([figure, value(found), target] for figure, (value, target) in figures.items())

    add(
        "call",
        costs["call"],
        {
            "f(x, y) on numbers, over the C call": (lambda c: f"{c['numbers']['over']:.0f} ns", "60 ns"),
            "f(x, y) on arrays of 3, over the C call": (lambda c: f"{c['arrays']['over']:.0f} ns", ""),
        },
    )
    add("import", costs["import"], {"import hyad over numpy and hy": (lambda c: f"{1000 * c:.0f} ms", "80 ms")})
    add(
        "first gradient",
        costs["first"],
        {
            "first gradient of a ten-line model, cold": (lambda c: f"{1000 * c['cold']:.0f} ms", "500 ms"),
            "of which the C compiler (CPU)": (lambda c: f"{1000 * c['compiler']:.0f} ms", ""),
            "the same, warm from the cache": (lambda c: f"{1000 * c['warm']:.0f} ms", "20 ms"),
            "SymPy imported for it": (lambda c: "yes" if c["sympy"] else "no", "no"),
        },
    )
    return ["## Overheads", "", *table(["figure", "measured", "target"], rows)]


def machine() -> str:
    """The kind of machine, without its name."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    compiler = subprocess.run([CC, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    python = platform.python_version()
    return f"{model}, {os.cpu_count()} cores, {platform.system()}; {compiler}, `{' '.join(FLAGS)}`; Python {python}"


def write(
    path: Path,
    tables: dict[tuple[Problem, int], list[Row]],
    series: dict[str, list[tuple[int, Any]]],
    wrong: Any,
    modes: list[str],
    costs: dict[str, Any],
    limit: float,
) -> None:
    lines = ["# Benchmark results", "", f"{datetime.date.today().isoformat()}; {machine()}.", ""]
    lines += [
        "Ratios to the hand-written C of the same run, medians over turns taken alternately; nanoseconds are this",
        "machine's and mean nothing elsewhere. Every row was checked against the reference in this run. `(call)` is",
        "timed through the tool's own Python call, which is all it offers; its preparation includes compiling.",
        f"Generators were given {limit:.0f} s. See README.md beside this file.",
        "",
    ]
    lines += summary(tables)
    if tables:
        lines += ["## Derivatives against hand-written C", ""]
    for (problem, n), rows in tables.items():
        lines += problem_table(problem, n, rows)
    if series:
        lines += swell_tables(series)
    if wrong is not None:
        lines += guarded_lines(wrong, modes)
    if costs:
        lines += overhead_lines(costs)
    path.write_text("\n".join(lines).rstrip() + "\n")
