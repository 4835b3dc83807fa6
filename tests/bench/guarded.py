"""Guarded functions: first and second derivatives in every mode on the guard, beyond it and inside.

What is expected is written out by branch. A derivative that reads the branch not taken shows as a NaN.

Run as ``python guarded.py``; one line of JSON comes back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from suite import FOLDER

MODES = {
    "first, reverse": "((grad {f}) x)",
    "first, forward": "(jvp {f} x 1.0)",
    "second, reverse over reverse": "((grad (grad {f})) x)",
    "second, forward over reverse": "(jvp (grad {f}) x 1.0)",
    "second, reverse over forward": "((grad (fn [t] (jvp {f} t 1.0))) x)",
    "second, forward over forward": "(jvp (fn [t] (jvp {f} t 1.0)) x 1.0)",
}
TOLERANCE = 1e-11


def sinc(x: float) -> tuple[float, float]:
    if x == 0:
        return 0.0, -1 / 3
    return (math.cos(x) - math.sin(x) / x) / x, -math.sin(x) / x - 2 * (math.cos(x) - math.sin(x) / x) / x**2


# Model -> (first, second) at x; and the points: inside, near, on and beyond the guard.
EXPECTED: dict[str, tuple[Callable[[float], tuple[float, float]], tuple[float, ...]]] = {
    "guarded-sqrt": (lambda x: (0.5 / x**0.5, -0.25 / x**1.5) if x > 0 else (0.0, 0.0), (2.0, 1e-3, 0.0, -1.0)),
    "guarded-log": (lambda x: (math.log(x) + 1, 1 / x) if x > 0 else (0.0, 0.0), (2.0, 1e-3, 0.0, -1.0)),
    "guarded-power": (lambda x: (2.5 * x**1.5, 3.75 * x**0.5) if x > 0 else (3.0, 0.0), (2.0, 1e-3, 0.0, -1.0)),
    "guarded-quotient": (sinc, (2.0, 0.5, 0.0, -1.0)),
    "guarded-norm": (lambda x: (math.copysign(5**0.5, x), 0.0) if x else (0.0, 0.0), (2.0, 1e-3, 0.0, -1.0)),
    "guarded-huber": (
        lambda x: (math.copysign(2 * 5**0.5, x), 0.0) if 5 * x * x > 1 else (10 * x, 10.0),
        (2.0, 0.1, 0.0, -1.0),
    ),
}


def module_text() -> str:
    """The models and, for each, one that gives its derivatives in all modes."""
    parts = [(FOLDER / "guarded.hy").read_text()]
    for name in EXPECTED:
        rows = "\n   ".join(form.format(f=name) for form in MODES.values())
        parts.append(f"(defmodel all-{name} [#^ Real x]\n  [{rows}])\n")
    return "\n".join(parts)


def deviations() -> dict[str, list[str]]:
    """Model -> what came out wrong, in words; empty lists where everything is right."""
    from hyad_contender import empty_cache, hyad

    with empty_cache() as folder:
        path = folder / "guarded_modes.hy"
        path.write_text(module_text())
        return wrong_values(hyad.load(path))


def wrong_values(models: Any) -> dict[str, list[str]]:
    wrong: dict[str, list[str]] = {}
    for name, (expected, points) in EXPECTED.items():
        wrong[name] = []
        f = getattr(models, f"all_{name.replace('-', '_')}")
        for x in points:
            first, second = expected(x)
            for mode, value in zip(MODES, f(x)):
                want = first if mode.startswith("first") else second
                if not abs(value - want) <= TOLERANCE * max(1.0, abs(want)):
                    wrong[name].append(f"{mode} at {x:g}: {value:.17g}, not {want:.17g}")
    return wrong


if __name__ == "__main__":
    print(json.dumps(deviations()))
