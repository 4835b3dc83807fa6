"""What hyad costs beside the arithmetic: a call, the import, the first gradient.

``python overhead.py call ROUNDS BUDGET`` and ``python overhead.py first`` each print one line of JSON; the functions
below start them, and whole interpreters, as often as a median wants.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from limited import script

TEN_LINES = """(defmodel pharmacokinetics [#^ Real dose #^ Real ka #^ Real ke #^ Real v #^ Real t]
  "Concentration after an oral dose: one compartment, with saturation and a baseline."
  (let [absorbed (exp (- (* ka t)))
        eliminated (exp (- (* ke t)))
        scale (/ (* dose ka) (* v (- ka ke)))
        c (* scale (- eliminated absorbed))
        saturation (/ c (+ 1.0 (* 0.1 c)))
        baseline (* 0.05 (log (+ 1.0 (* t t))))
        drift (sqrt (+ 1.0 (* ke ke t)))]
    (/ (+ saturation baseline) drift)))
"""
POINT = (300.0, 1.3, 0.21, 28.0, 2.5)
CHECKOUT = str(Path(__file__).parents[2])


def call_cost(rounds: int, budget: float) -> dict[str, dict[str, float]]:
    """Nanoseconds of ``f(x, y)`` on two numbers and on two arrays, empty loop taken off, and of the bare C call."""
    from hyad_contender import empty_cache, how_to_call, hyad
    from measure import Contender, Native, build
    from suite import VALUE_AND_GRADIENT, Input, Problem, number

    found = {}
    cases = {
        "numbers": ("(model [#^ Real x #^ Real y] (* x (+ x y)))", number, (2.0, 3.0)),
        "arrays": ("(model [#^ (Vec 3) x #^ (Vec 3) y] (dot x y))", lambda n: (3,), (np.arange(3.0), np.ones(3))),
    }
    for name, (text, shape, arguments) in cases.items():
        inputs = tuple(Input(i, shape, active=False) for i in "xy")
        problem = Problem(name, "", VALUE_AND_GRADIENT, (), inputs, max, lambda n, rng: list(arguments), "", "")
        bank = np.concatenate([np.ravel(a) for a in arguments])[None, :]
        with empty_cache() as folder:
            f = hyad.compile(hyad.model(text), target="c")
            c = f.cfunction
            declaration, call, work = how_to_call(c, problem, 3)
            contender = Contender(name, c.source, declaration, call, work=work, header=(f"{c.name}.h", c.header))
            native = Native(build(contender, problem, 3, folder), problem, 3, bank)
        reps = int(budget / 100e-9)
        called, bare, empty = [], [], []
        for _ in range(rounds):
            called.append(python_loop(f, arguments, reps))
            empty.append(python_loop(None, arguments, reps))
            bare.append(native.seconds(reps)[0])
        python, c_call, loop = (1e9 * statistics.median(a) / reps for a in (called, bare, empty))
        found[name] = {"call": python - loop, "c": c_call, "over": python - loop - c_call}
    return found


def python_loop(f: Any, arguments: tuple[Any, Any], reps: int) -> float:
    x, y = arguments
    start = time.perf_counter()
    if f is None:
        for _ in repeat(None, reps):
            pass
    else:
        for _ in repeat(None, reps):
            f(x, y)
    return time.perf_counter() - start


def first_gradient() -> dict[str, Any]:
    """One gradient in this process, text to numbers, and the C compiler's share; hyad is imported already."""
    from hyad_contender import compiler_seconds, hyad

    start, before = time.perf_counter(), compiler_seconds()
    gradient = hyad.grad(hyad.model(TEN_LINES))(*POINT)
    spent = time.perf_counter() - start
    return {
        "gradient": spent,
        "compiler": compiler_seconds() - before,
        "sympy": "sympy" in sys.modules,
        "sum": float(sum(gradient)),
    }


def first_gradients(rounds: int) -> dict[str, Any]:
    """Medians over fresh processes: with an empty cache of compiled code each, and with a filled one."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as kept:
        script("overhead.py", ["first"], 120, environment=clean_environment(kept))
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as fresh:
                cold.append(script("overhead.py", ["first"], 120, environment=clean_environment(fresh)))
            warm.append(script("overhead.py", ["first"], 120, environment=clean_environment(kept)))
    if len({round(run["sum"], 12) for run in cold + warm}) != 1:
        raise RuntimeError("the gradients of cold and warm processes differ")
    return {
        "cold": statistics.median(run["gradient"] for run in cold),
        "compiler": statistics.median(run["compiler"] for run in cold),
        "warm": statistics.median(run["gradient"] for run in warm),
        "sympy": any(run["sympy"] for run in cold + warm),
    }


def clean_environment(cache: str) -> dict[str, str]:
    """Bytecode may be written (containers often forbid it, and Hy files are then compiled at every import)."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"HYAD_CACHE": cache}


def import_cost(rounds: int) -> float:
    """Seconds that ``import hyad`` adds to ``import numpy, hy``: medians of whole interpreters, by turns."""
    environment = clean_environment(os.environ.get("HYAD_CACHE", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [CHECKOUT, environment.get("PYTHONPATH")]))
    spent: dict[str, list[float]] = {"import numpy, hy": [], "import numpy, hy, hyad": []}
    for k in range(rounds + 1):
        for statement, times in spent.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
            if k:  # the first turn writes the bytecode
                times.append(time.perf_counter() - start)
    without, with_hyad = (statistics.median(times) for times in spent.values())
    return with_hyad - without


if __name__ == "__main__":
    if sys.argv[1] == "first":
        print(json.dumps(first_gradient()))
    else:
        print(json.dumps(call_cost(int(sys.argv[2]), float(sys.argv[3]))))
