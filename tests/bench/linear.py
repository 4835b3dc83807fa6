"""How hyad's time to derive, optimise and print, and its code, grow with the size of a program.

Run as ``python linear.py SHAPE MODE N`` for one point: seconds from the text to the optimised derivative, seconds to
print it as C, bytes of C. A derivative of a small model of the same shape is made before the clock runs: what hyad
reads at its first use is a figure of ``overhead.py``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

SIZES = (10, 100, 1000, 10000)
SHAPES = {
    "lets": "one let of n bindings, any two of the last ten and an input in each",
    "calls": "n functions of a letrec, each calls the next one: all are inlined",
    "recursion": "n / 20 recursive functions of 20 bindings, called one after the other",
}
MODES = ("reverse", "forward")
OPERATIONS = (
    "(+ {a} {b})",
    "(* {a} (sin {b}))",
    "(- (* {a} {b}) z)",
    "(tanh (+ {a} x))",
    "(/ {a} (+ 2.0 (* {b} {b})))",
)


def lets(n: int, rng: np.random.Generator, names: list[str], prefix: str = "t") -> tuple[str, str]:
    """The bindings of a let, and the name of the last one."""
    names, lines = list(names), []
    for k in range(n):
        a, b = (names[-1 - int(i)] for i in rng.integers(min(10, len(names)), size=2))
        lines.append(f"{prefix}{k} " + OPERATIONS[int(rng.integers(len(OPERATIONS)))].format(a=a, b=b))
        names.append(f"{prefix}{k}")
    return "\n        ".join(lines), names[-1]


def model_text(shape: str, n: int) -> str:
    rng = np.random.default_rng(n)
    if shape == "lets":
        lines, last = lets(n, rng, ["x", "y", "z"])
        return f"(fn [#^ Real x #^ Real y #^ Real z]\n  (let [{lines}]\n    {last}))\n"
    if shape == "calls":
        functions = [f"f{k} (fn [u] (sin (* (f{k + 1} (* u x)) y)))" for k in range(n // 3)]
        text = "\n           ".join([*functions, f"f{n // 3} (fn [u] (+ u z))"])
        return f"(fn [#^ Real x #^ Real y #^ Real z]\n  (letrec [{text}]\n    (f0 x)))\n"
    functions, calls, following = [], [], "x"
    for k in range(max(1, n // 20)):
        lines, last = lets(16, rng, ["u", "y", "z"])
        functions.append(
            f"f{k} (fn [u m] (if (= m 0) (sin u)\n      (let [{lines}]\n        (* 0.5 (f{k} {last} (- m 1)) y))))"
        )
        calls.append(f"r{k} (f{k} {following} (int (+ z {k})))")
        following = f"r{k}"
    text, steps = "\n    ".join(functions), "\n          ".join(calls)
    return f"(fn [#^ Real x #^ Real y #^ Real z]\n  (letrec [{text}]\n    (let [{steps}]\n      {following})))\n"


def derivative(text: str, mode: str) -> Any:
    from hyad_contender import hyad

    if mode == "reverse":
        return hyad.grad(hyad.model(text))
    return hyad.model(f"(fn [#^ Real x #^ Real y #^ Real z] (jvp {text} x y z 1.0 0.5 -0.25))")


def point(shape: str, mode: str, n: int) -> dict[str, float]:
    from hyad.codegen.c import print_c

    found: dict[str, float] = {}
    for size in (10, n):
        start = time.perf_counter()
        f = derivative(model_text(shape, size), mode)
        program = f.optimised(f.specs())
        derived = time.perf_counter()
        source = print_c(program).source
        printed = time.perf_counter()
        found = {"derive": derived - start, "print": printed - derived, "bytes": len(source)}
    return found


if __name__ == "__main__":
    import hyad_contender  # noqa: F401, the import is not part of the time to derive

    sys.setrecursionlimit(10_000)
    print(json.dumps(point(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
