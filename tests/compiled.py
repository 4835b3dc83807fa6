"""What is asked of a random program in compiled code, for dozens of programs at a time.

``examine(seeds, extra)`` compiles, of each program, its value, its value and gradient and its derivative along a
direction, and compares: the two values; the gradient, times the direction, with the derivative along it; that with
differences of the compiled value, or, where those do not settle, of the oracle. ``extra`` adds, to some programs each,
second derivatives, every encoding of reverse mode, the Python target, define by run and the extension stub.

A failure is a line with the program's seed and text; ``shrunk`` makes that text smaller for as long as it fails alike.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np

import hyad
import oracle
from hyad.core import Program
from hyad.model import Model, derived
from hyad.plain_python import python_callable
from hyad.program.forms import Form, read_forms, unparse
from hyad.program.values import ENCODINGS
from programs import DEFINITIONS, NAMESPACE, PARAMS, Programs, arguments
from together import COMPILER, QUICK, Library

DEPTHS = (3, 2, 3, 2, 4)  # of the programs, in turn
STEEP = 1e5  # values and slopes beyond this are not judged in double precision


@dataclass
class Subject:
    """One program: its functions in the library by name, and the point and directions at which it is judged."""

    seed: int
    text: str
    point: tuple[Any, ...]
    one: tuple[Any, ...]
    two: tuple[Any, ...]
    functions: dict[str, int] = field(default_factory=dict)
    python: dict[str, np.ndarray] = field(default_factory=dict)  # what the Python target gives
    wrong: list[str] = field(default_factory=list)
    judge: str = ""  # what judged the slope

    @property
    def model(self) -> Model:
        return hyad.model(self.text, namespace=NAMESPACE)

    def wants(self, what: str) -> bool:
        """Whether this is one of the programs of which something more is asked."""
        every, first = {"second": (4, 0), "encodings": (2, 1), "python": (8, 2), "run": (4, 3), "stub": (64, 5)}[what]
        return self.seed % every == first % every

    def compare(self, what: str, got: Any, expected: Any, scale: float = 0.0, rtol: float = 1e-8) -> None:
        got, expected = np.asarray(got, float), np.asarray(expected, float)
        if got.shape != expected.shape:
            self.wrong.append(f"{what}: {got!r}, expected {expected!r}")
            return
        largest = np.max(np.abs([*got.ravel(), *expected.ravel(), scale]), initial=0.0)
        if not np.allclose(got, expected, rtol=0, atol=0.1 * rtol + rtol * largest, equal_nan=True):
            self.wrong.append(f"{what}: {got.tolist()!r}, expected {expected.tolist()!r}")


def subject(seed: int) -> Subject:
    return Subject(seed, Programs(seed, DEPTHS[seed % len(DEPTHS)]).text(), *arguments(seed))


def flat(value: Any) -> np.ndarray:
    return np.array(oracle.numbers(value))


# ------------------------------------------------------------------------------------------- the programs


def programs_of(s: Subject, extra: bool) -> Iterator[tuple[str, Program, tuple[Any, ...]]]:
    """The typed programs of a subject, each with the arguments that it takes."""
    model, along = s.model, (*s.point, *s.one)

    def program(operator: str, args: tuple[Any, ...], of: Model = model) -> Program:
        made = derived(operator, of)
        return made.optimised(made.specs(args))

    yield "value", model.optimised(model.specs(s.point)), s.point
    yield "reverse", program("value-and-grad", s.point), s.point
    yield "forward", program("jvp", along), along
    if extra and s.wants("second"):
        yield "forward over reverse", program("hvp", along), along
        names, moves = " ".join(PARAMS), " ".join(f"d{n}" for n in PARAMS)
        slope = f"(fn [{names}] (jvp {s.text} {names} {moves}))"
        text = f"(fn [{names} {moves}] ((grad {slope}) {names}))"
        over = hyad.model(text, namespace=NAMESPACE)
        yield "reverse over forward", over.optimised(over.specs(along)), along
    if extra and s.wants("encodings"):
        for encoding in ENCODINGS[1:]:
            made = derived("value-and-grad", model, None, encoding)
            yield encoding, made.optimised(made.specs(s.point)), s.point


def take_in(s: Subject, library: Library, extra: bool) -> None:
    try:
        for name, program, args in programs_of(s, extra):
            s.functions[name] = library.add(program, args)
            if extra and s.wants("python") and name in ("reverse", "forward"):
                s.python[name] = flat(python_callable(program)(*args))
    except Exception as error:  # every program is tried
        s.wrong.append(f"{type(error).__name__}: {error}")


# --------------------------------------------------------------------------------------------- the judge


def examine(seeds: Sequence[int] | Sequence[Subject], extra: bool = False) -> list[Subject]:
    """The programs, with what is wrong with them."""
    subjects = [s if isinstance(s, Subject) else subject(s) for s in seeds]
    library = Library()
    for s in subjects:
        with checked(s.seed % 4 == 0):
            take_in(s, library, extra)
    library.compile(COMPILER if subjects[0].seed // len(subjects) % 4 == 0 else QUICK)
    for s in subjects:
        if not s.wrong:
            try:
                verdict(s, library, extra)
            except Exception as error:
                s.wrong.append(f"{type(error).__name__}: {error}")
    return subjects


class checked:
    """Some programs are checked after every pass, which takes as long as all the rest."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __enter__(self) -> None:
        self.before = os.environ.get("HYAD_CHECK", "")
        os.environ["HYAD_CHECK"] = "1" if self.on else "0"

    def __exit__(self, *_: Any) -> None:
        os.environ["HYAD_CHECK"] = self.before


def verdict(s: Subject, library: Library, extra: bool) -> None:
    """Compare what a program's functions give."""
    at, one, two = flat(s.point), flat(s.one), flat(s.two)
    both = np.concatenate([at, one])

    def value(numbers: np.ndarray) -> float:
        (found,) = library.call(s.functions["value"], numbers)
        return found

    def gradient(numbers: np.ndarray) -> np.ndarray:
        return library.call(s.functions["reverse"], numbers)[1:]

    first, reverse = value(at), library.call(s.functions["reverse"], at)
    forward = library.call(s.functions["forward"], both)
    scale = float(np.max(np.abs(reverse[1:]), initial=0.0))
    if len(reverse) != 1 + len(at):
        s.wrong.append(f"the gradient has {len(reverse) - 1} numbers, the arguments {len(at)}")
        return
    s.compare("value beside the gradient", reverse[0], first)
    s.compare("reverse, forward", [reverse[1:] @ one], forward, scale)
    if not max(abs(first), scale, *abs(forward)) < STEEP:
        s.judge = "steep" if np.isfinite([first, scale, *forward]).all() else "not finite"
        if s.judge == "not finite":
            s.wrong.append(f"value {first}, gradient {reverse[1:]}")
        return
    slope, sure = differences(lambda h: np.array([value(at + h * one)]))
    s.judge = "differences" if sure else "oracle"
    if not sure:
        true, slope = by_oracle(s)
        s.compare("value, oracle", first, true)
    s.compare(f"forward, {s.judge}", forward, np.ravel(slope), scale, 1e-6)
    if "forward over reverse" in s.functions:
        curve = library.call(s.functions["forward over reverse"], both)
        size = float(np.max(np.abs(curve), initial=0.0))
        other = library.call(s.functions["reverse over forward"], both)
        s.compare("reverse over forward, forward over reverse", other, curve, size)
        again = library.call(s.functions["forward over reverse"], np.concatenate([at, two]))
        s.compare("symmetry", [curve @ two], [again @ one], max(size, float(np.max(np.abs(again), initial=0.0))))
        slopes, sure = differences(lambda h: gradient(at + h * one))
        if sure and size < STEEP:
            s.compare("forward over reverse, differences", curve, slopes, scale, 1e-6)
    for name in s.functions:
        if name in ENCODINGS:
            s.compare(name, library.call(s.functions[name], at), reverse)
    for name, found in s.python.items():
        s.compare(f"{name} in Python", found, {"reverse": reverse, "forward": forward}[name])
    if extra and s.wants("run"):
        s.compare("define by run", flat(hyad.run(hyad.value_and_grad(s.model), *s.point)), reverse)
    if extra and s.wants("stub"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s.compare("extension", flat(hyad.value_and_grad(s.model)(*s.point)), reverse)


def differences(f: Callable[[float], np.ndarray], step: float = 2e-3) -> tuple[np.ndarray, bool]:
    """The derivative of ``f`` at 0 by central differences, extrapolated twice, and whether it settled."""
    d = [(f(h) - f(-h)) / (2 * h) for h in (step, step / 2, step / 4)]
    once = [(4 * b - a) / 3 for a, b in zip(d, d[1:])]
    best = (16 * once[1] - once[0]) / 15
    limit = 1e-7 * (1 + np.max(np.abs(best), initial=0.0))
    return best, bool(np.all(np.abs(best - once[1]) < limit))


def by_oracle(s: Subject) -> tuple[float, float]:
    """Value and slope along the direction, in many digits."""
    with mpmath.workdps(oracle.DIGITS):
        f = oracle.meaning(s.text, DEFINITIONS)
        args, moves = [*map(oracle.internal, s.point)], [*map(oracle.internal, s.one)]
        return float(f(*args)), float(oracle.along(f, args, range(len(args)), moves))


# ---------------------------------------------------------------------------------------------- failures


def report(subjects: Sequence[Subject], extra: bool = False) -> str:
    """What failed, with seeds and texts; the first failure is shrunk."""
    failed = [s for s in subjects if s.wrong]
    lines = [f"seed {s.seed}: {s.text}\n  " + "\n  ".join(s.wrong) for s in failed]
    if failed:
        lines.insert(0, f"seed {failed[0].seed}, shrunk: {shrunk(failed[0], extra)}")
    return "\n".join(lines)


def shrunk(s: Subject, extra: bool = False, seconds: float = 20.0) -> str:
    """A smaller text with the same kind of failure: subforms become one of their own parts, or a number."""
    end = time.monotonic() + seconds
    kind = s.wrong[0].partition(":")[0]

    def fails(text: str) -> bool:
        (found,) = examine([Subject(s.seed, text, s.point, s.one, s.two)], extra)
        return any(w.partition(":")[0] == kind for w in found.wrong)

    text, again = s.text, True
    while again:
        again = False
        for candidate in smaller(text):
            if time.monotonic() > end:
                return text
            if fails(candidate):
                text, again = candidate, True
                break
    return text


def smaller(text: str) -> Iterator[str]:
    """Texts with one form of the body replaced by a part of it or by a number, the shortest first."""
    (whole,) = read_forms(text)
    found: dict[str, None] = {}

    def visit(form: Form, put: Callable[[Form], None]) -> None:
        if not form.is_list:
            return
        for other in (Form("num", 0.5), *(part for part in form.value if part.is_list or part.kind == "sym")):
            put(other)
            found[unparse(whole)] = None
        put(form)
        for k, part in enumerate(form.value):
            visit(part, lambda x, k=k: form.value.__setitem__(k, x))

    body = len(whole.value) - 1
    visit(whole.value[body], lambda x: whole.value.__setitem__(body, x))
    return iter(sorted((t for t in found if len(t) < len(text)), key=len))
