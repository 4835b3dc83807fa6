"""What was measured, as Markdown tables and SVG plots."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from measure import CC, FLAGS
from recursion import Found, Walk
from suite import PROBLEMS, Problem

VECTOR_MATH = ", vector math"  # in the name of a row: compiled with ``math="vector"``


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


def problem_parts() -> dict[str, str]:
    """Problems and sizes: their rows in the summary, and the headings of their tables."""
    return {p.label(n): f"{p.label(n)}: {p.title}" for p in PROBLEMS for n in p.sizes}


def problem_table(problem: Problem, n: int, rows: list[Row]) -> list[str]:
    title = f"### {problem_parts()[problem.label(n)]}"
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
    """hyad against what it is to reach, the best of its rows with the C library's functions and apart from it that with
    vector math; and the best of the other generators. A figure is met when it rounds to what is printed of the target.
    """
    lines = []
    for (problem, n), rows in tables.items():
        ours = [r for r in rows if r.name.startswith("hyad")]
        if not ours:
            continue
        others = [r for r in rows if r.wall is not None and not r.name.startswith(("hyad", "hand"))]
        best = min(others, key=lambda r: r.wall or 0, default=None)
        target = problem.targets.get(n)
        line = [problem.label(n), "{:.2f}; {:g} s".format(*target) if target else ""]
        vector = [r for r in ours if VECTOR_MATH in r.name]
        for which in ([r for r in ours if r not in vector], vector):
            timed = [r for r in which if r.wall is not None]
            if not timed:
                line += ["none", "", "no" if target else ""] if which else [""] * 3
                continue
            row = min(timed, key=lambda r: r.wall or 0)
            spent = (row.prepare or 0) + (row.compile or 0)
            met = target is not None and round(row.wall or 0, 2) <= target[0] and round(spent, 2) <= target[1]
            name = row.name.removeprefix("hyad").removeprefix(VECTOR_MATH).removeprefix(", ")
            figure = ratio(row.wall) + (f" ({name})" if name else "")
            line += [figure, f"{spent:.2f}", "" if target is None else "yes" if met else "no"]
        lines.append([*line, f"{best.name} {ratio(best.wall)}" if best else ""])
    if not lines:
        return []
    seconds = "derive + print + compile, s"
    head = ["problem", "target", "hyad, x hand", seconds, "met", "with vector math", seconds, "met", "best peer"]
    return ["## Summary", "", *table(head, lines)]


def problem_lines(tables: dict[tuple[Problem, int], list[Row]], limit: float) -> list[str]:
    lines = [*summary(tables), "## Derivatives against hand-written C", ""]
    lines += [f"Generators were given {limit:.0f} s.", ""]
    for (problem, n), rows in tables.items():
        lines += problem_table(problem, n, rows)
    return lines


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
    for quantity, label in (("seconds", "seconds to derive and print"), ("bytes", "bytes of C")):
        curves = {name: [(d, f[quantity]) for d, f in points if isinstance(f, dict)] for name, points in series.items()}
        plot(curves, "depth d of the logistic map", label, folder / f"swell-{quantity}.svg")


def plot(curves: dict[str, list[tuple[int, float]]], across: str, up: str, path: Path) -> None:
    """Curves on logarithmic axes, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "hyad"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(6, 4))
    for (name, found), marker in zip(curves.items(), "os^Dvx"):
        if found:
            axes.loglog(*zip(*found), marker=marker, label=name)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def recursion_lines(tables: dict[Walk, list[Found]], trees: str) -> list[str]:
    lines = ["## Recursion and loops", "", f"Gradient over primal, in C. Trees: {trees}.", ""]
    rows = []
    for walk, found in tables.items():
        ours = next((f for f in found if f.name == "hyad"), None)
        if ours is not None and ours.ratio is not None:
            met = "yes" if ours.ratio[0] <= walk.target else "no"
            times = [ratio(ours.ratio[0]), ratio(ours.ratio[1]), f"{walk.target}", met]
            by_hand = next(f for f in found if f.name == "hand")
            rows.append([walk.name, *times, ratio(by_hand.ratio[0]), ratio(ours.hand[0])])  # type: ignore[index]
    head = ["model", "hyad: gradient / primal", "CPU", "target", "met", "by hand: gradient / primal", "hyad x hand"]
    lines += table(head, rows)
    for walk, found in tables.items():
        lines += [f"### {walk.name}: {walk.title}", ""]
        head = ["contender", "gradient / primal", "CPU", "gradient, x hand", "CPU", "primal, ns", "gradient, ns"]
        lines += table([*head, "derive + print, s", "compile, s", "C, kB"], [found_cells(f) for f in found])
    return lines


def found_cells(f: Found) -> list[str]:
    if f.note:
        return [f.name, f.note.replace("|", "/"), *[""] * 8]
    ratios = [ratio(x) for pair in (f.ratio, f.hand) for x in (pair or (None, None))]
    nanoseconds = [cell(x, ".1f" if x and x < 1000 else ".0f") for x in (f.primal, f.gradient)]
    seconds = [cell(f.prepare, ".3f"), cell(f.compile, ".3f")]
    return [f.name, *ratios, *nanoseconds, *seconds, cell(f.source_bytes and f.source_bytes / 1000, ".1f")]


def encoding_lines(tables: dict[Walk, list[Found]]) -> list[str]:
    lines = ["## What an encoding costs", ""]
    lines += ["The gradient in C in each encoding of reverse mode: time over the primal's, time over that of `record`,"]
    lines += ["the most stack that one call takes, the length of the C text.", ""]
    rows = []
    for walk, found in tables.items():
        for f in found:
            name = f"{walk.name}, primal" if f.name == "hyad" else f"{walk.name}, `{f.name}`"
            if f.note:
                rows.append([name, f.note.replace("|", "/"), "", "", "", "", ""])
                continue
            over = f.ratio if f.name != "hyad" else None
            record = f.hand if f.name != "hyad" else None
            times = [ratio(x) for pair in (over, record) for x in (pair or (None, None))]
            rows.append([name, *times, cell(f.stack, "d"), cell(f.source_bytes and f.source_bytes / 1000, ".1f")])
    head = ["model, encoding", "x primal", "CPU", "x record", "CPU", "stack, bytes", "C, kB"]
    return [*lines, *table(head, rows)]


def ladder_lines(found: dict[Any, list[tuple[str, Any]]]) -> list[str]:
    lines = ["## dF~'s experiments, rule by rule", ""]
    lines += ["Time over that of the derivative written by hand in C. Each row adds optimisations to the one above."]
    steps = [step for step, _ in next(iter(found.values()))]
    rows = []
    for k, step in enumerate(steps):
        cells = [found[e][k][1] for e in found]
        rows.append([step, *(c if isinstance(c, str) else ratio(c[0]) for c in cells)])
    return [*lines, "", *table(["", *(f"{e.title}, n = {e.size}" for e in found)], rows)]


def mode_lines(found: dict[Any, list[tuple[int, dict[str, Any]]]]) -> list[str]:
    lines = ["## dF~'s experiments, forward mode against reverse mode", ""]
    lines += [
        "Time over that of the derivative written by hand in C; all optimisations; medians of CPU time. Target: forward"
    ]
    lines += ["at most 1.2 times reverse at every size.", ""]
    rows = []
    for e, points in found.items():
        for n, times in points:
            one, other = times["forward"], times["reverse"]
            cells = [c if isinstance(c, str) else ratio(c[1]) for c in (one, other)]
            both = "" if str in (type(one), type(other)) else ratio(one[1] / other[1])
            rows.append([e.title, str(n), *cells, both])
    return [*lines, *table(["", "n", "forward", "reverse", "forward / reverse"], rows)]


def naive_lines(found: dict[Any, dict[str, Any]]) -> list[str]:
    lines = ["## Naive programs", ""]
    lines += ["As a newcomer writes them: time of value and gradient over those written by hand in C, in CPU time."]
    rows = []
    for p, times in found.items():
        cells = [c if isinstance(c, str) else ratio(c[1]) for c in (times["value"], times["gradient"])]
        rows.append([f"{p.title}, n = {p.size}", *cells])
    return [*lines, "", *table(["", "value", "gradient"], rows)]


def linear_lines(series: dict[str, list[tuple[int, Any]]]) -> list[str]:
    lines = ["## Size of the program", "", "Programs of n bindings, generated; time from the text to the optimised", ""]
    lines[-2] += " derivative, and to print it; the size of the C."
    lines += ["![seconds to derive, optimise and print](linear.svg)", ""]
    rows = []
    for name, points in series.items():
        for n, found in points:
            if isinstance(found, str):
                rows.append([name, str(n), found.replace("|", "/"), "", "", ""])
                continue
            total = found["derive"] + found["print"]
            times = [f"{1000 * found['derive']:.1f}", f"{1000 * found['print']:.1f}", f"{1e6 * total / n:.0f}"]
            rows.append([name, str(n), *times, f"{found['bytes'] / 1000:.1f}"])
    lines += table(["program", "n", "derive + optimise, ms", "print, ms", "us a binding", "C, kB"], rows)
    for name, points in series.items():
        found = [(n, f["derive"] + f["print"], f["bytes"]) for n, f in points if isinstance(f, dict) and n >= 1000]
        if len(found) == 2:
            (n, t, size), (m, u, larger) = found
            powers = [log(b / a) / log(m / n) for a, b in ((t, u), (size, larger))]
            growth = f"the time grows as n^{powers[0]:.2f}, the C as n^{powers[1]:.2f}"
            lines += [f"{name}: from n = {n} to {m} {growth}.", ""]
    return lines


def plot_linear(series: dict[str, list[tuple[int, Any]]], folder: Path) -> None:
    curves = {
        name: [(n, f["derive"] + f["print"]) for n, f in points if isinstance(f, dict)]
        for name, points in series.items()
    }
    plot(curves, "bindings n of the program", "seconds to derive, optimise and print", folder / "linear.svg")


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


HEAD = """Ratios to the hand-written C of the same run, medians over turns taken alternately; nanoseconds are this
machine's and mean nothing elsewhere. Every row was checked against the reference in its run. `(call)` is
timed through the tool's own Python call, which is all it offers; its preparation includes compiling.
What the last run left out, sections, problems, objectives or sizes, is kept from the run before: each section begins
with its day and its machine, and has a line of its own for what was measured at another time. See README.md beside
this file."""
ORDER = [
    "Summary",
    "Derivatives against hand-written C",
    "The AD suite",
    "Recursion and loops",
    "What an encoding costs",
    "dF~'s experiments, rule by rule",
    "Size of the program",
    "Swell: the gradient of the logistic map at depth d",
    "Guarded functions",
    "Overheads",
]


def sections_of(lines: list[str]) -> dict[str, list[str]]:
    """The lines of each section by its heading."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("## "):
            found[line[3:]] = []
        elif found:
            found[next(reversed(found))].append(line)
    return found


def write(path: Path, lines: list[str], parts: dict[str, str] | None = None) -> None:
    """Put the sections that ``lines`` have in the place of those in the file.

    Where ``parts`` are given, a section consists of them, and those that ``lines`` lack are kept: ``parts`` has, for
    the name of a row in the section's first table, the heading of the table below, in order.
    """
    before = sections_of(path.read_text().splitlines()) if path.exists() else {}
    stamp = f"{datetime.date.today().isoformat()}; {machine()}"
    made = {}
    for heading, section in sections_of(lines).items():
        stamps, body = [f"{stamp}."], "\n".join(section).strip("\n").splitlines()
        if parts is not None and heading in before:
            stamps, body = with_kept(before[heading], body, stamp, parts)
        made[heading] = ["", *stamps, "", *body]
    sections = {**before, **made}
    text = ["# Benchmark results", "", HEAD]
    for heading in sorted(sections, key=lambda h: ORDER.index(h) if h in ORDER else len(ORDER)):
        text += ["", f"## {heading}", "", *"\n".join(sections[heading]).strip("\n").splitlines()]
    path.write_text("\n".join(text).rstrip() + "\n")


def with_kept(old: list[str], new: list[str], stamp: str, parts: dict[str, str]) -> tuple[list[str], list[str]]:
    """A section with the parts that ``new`` has, and from ``old`` the others that there still are: the days and
    machines, and the text. The first of the former is that of all parts but those named with the others."""
    head, tables = parts_of(new)
    old_head, old_tables = parts_of(old)
    names = {heading: name for name, heading in parts.items()}
    rows, old_rows = rows_of(head), rows_of(old_head)
    first, old_first = ([line for line in lines if line.startswith("|")][:1] for lines in (head, old_head))
    if first and old_first and first != old_first:
        sys.exit("the tables in the file have other columns: remove them, or write to another file (--out)")
    measured = {*rows, *(names[h] for h in tables if h in names)}
    kept = {n for n in parts if n not in measured and (n in old_rows or parts[n] in old_tables)}

    before = [re.fullmatch(STAMP, line) for line in old]
    found = [(m["stamp"], m["names"].split("; ") if m["names"] else None) for m in before if m]
    others = next((text for text, named in found if named is None), stamp)
    of = dict.fromkeys(measured, stamp)
    of |= {name: next((text for text, named in found if named and name in named), others) for name in kept}
    days: dict[str, list[str]] = {text: [] for text in (others, *(text for text, _ in found), stamp)}
    for name in parts:
        if name in of:
            days[of[name]].append(name)
    most = max(days, key=lambda text: len(days[text]))
    stamps = [f"{most}.", *(f"{text}: {'; '.join(n)}." for text, n in days.items() if n and text != most)]

    rows |= {name: old_rows[name] for name in kept if name in old_rows}
    tables |= {parts[name]: old_tables[parts[name]] for name in kept if parts[name] in old_tables}
    lines = [line for line in head if not line.startswith(("|", "!["))]
    if rows:
        rule = next(k for k, line in enumerate(head) if line.startswith("|---"))
        lines = [*"\n".join(lines).rstrip("\n").splitlines(), ""]
        lines += [*head[rule - 1 : rule + 1], *(rows[name] for name in sorted(rows, key=place_in(parts))), ""]
    pictures = {line for line in (*head, *old_head) if line.startswith("![")}
    for name in dict.fromkeys(name.partition(" ")[0].strip(",") for name in parts):
        lines += [x for line in sorted(pictures) if line.startswith(f"![{name}]") for x in (line, "")]
    for heading in sorted(tables, key=place_in(parts.values())):
        lines += [f"### {heading}", "", *"\n".join(tables[heading]).strip("\n").splitlines(), ""]
    return stamps, "\n".join(lines).strip("\n").splitlines()


#: A line with the day and the machine, of all parts of a section or of some.
STAMP = r"(?P<stamp>\d{4}-\d\d-\d\d; .*; Python [^:;]*?)(: (?P<names>.*))?\."


def place_in(names: Iterable[str]) -> Callable[[str], int]:
    """For sorting: where a name is among others, those that are not there at the end."""
    order = list(names)
    return lambda name: order.index(name) if name in order else len(order)


def parts_of(section: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The lines before the first heading of a part, and those of each part."""
    head: list[str] = []
    found: dict[str, list[str]] = {}
    for line in section:
        if line.startswith("### "):
            found[line[4:]] = []
        else:
            (found[next(reversed(found))] if found else head).append(line)
    return head, found


def rows_of(lines: list[str]) -> dict[str, str]:
    """The rows of a table by their first cell, without its head."""
    return {line.split("|")[1].strip(): line for line in [x for x in lines if x.startswith("|")][2:]}
