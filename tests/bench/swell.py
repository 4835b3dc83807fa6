"""Expression swell: the derivative of the depth-d logistic map x -> 3 x (1 - x), by how much it grows with d.

Run as ``python swell.py CONTENDER D`` for one point of the series: seconds to derive and print, bytes of C, and for
hyad whether the compiled derivative is right (the recurrence dx -> 3 (1 - 2 x) dx in 60 digits). The factor is 3
because there the derivative neither vanishes nor overflows at depth 10000.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

DEPTHS = (10, 100, 1000, 10000)
SYMPY_DEPTHS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
X = 0.3
TITLES = {
    "hyad": "hyad, straight line",
    "hyad-loop": "hyad, ifold",
    "casadi": "CasADi",
    "sympy": "SymPy, nested",
}


def straight_model(d: int) -> str:
    """The map written out: d lets."""
    lets = "\n        ".join(
        f"x{k + 1} (* 3.0 {'x' if k == 0 else f'x{k}'} (- 1.0 {'x' if k == 0 else f'x{k}'}))" for k in range(d)
    )
    return f"(defmodel logistic [#^ Real x]\n  (let [{lets}]\n    x{d}))\n"


def loop_model(d: int) -> str:
    return f"(defmodel logistic [#^ Real x]\n  (ifold (fn [x k] (* 3.0 x (- 1.0 x))) x {d}))\n"


def truth(d: int) -> float:
    import mpmath

    with mpmath.workdps(60):
        x, dx = mpmath.mpf(X), mpmath.mpf(1)
        for _ in range(d):
            x, dx = 3 * x * (1 - x), 3 * (1 - 2 * x) * dx
        return float(dx)


def hyad_point(text: str, d: int) -> dict[str, Any]:
    """Derive and print into a file; then, outside the clock, compile and compare one value."""
    from hyad_contender import empty_cache, hyad

    with empty_cache() as folder:
        # What hyad reads at its first use is part of "first gradient" in overhead.py, not of this.
        hyad.emit(hyad.grad(hyad.model(loop_model(1))), folder / "first.c")
        (folder / "first.c").unlink()
        start = time.perf_counter()
        gradient = hyad.grad(hyad.model(text))
        hyad.emit(gradient, folder / "logistic.c")
        spent = time.perf_counter() - start
        size = sum(file.stat().st_size for file in folder.glob("*.c"))
        start = time.perf_counter()
        value = hyad.compile(gradient)(X)
        compiled = time.perf_counter() - start
    expected = truth(d)
    return {"seconds": spent, "bytes": size, "compile": compiled, "error": abs(value - expected) / abs(expected)}


def casadi_point(d: int) -> dict[str, Any]:
    import casadi

    start = time.perf_counter()
    x = y = casadi.SX.sym("x")
    for _ in range(d):
        y = 3 * y * (1 - y)
    generator = casadi.CodeGenerator("f.c")
    generator.add(casadi.Function("f", [x], [casadi.gradient(y, x)]))
    text = generator.dump()
    return {"seconds": time.perf_counter() - start, "bytes": len(text)}


def sympy_point(d: int) -> dict[str, Any]:
    import sympy

    start = time.perf_counter()
    x = y = sympy.Symbol("x")
    for _ in range(d):
        y = 3 * y * (1 - y)
    bindings, results = sympy.cse([sympy.diff(y, x)])
    lines = [f"const double {name} = {sympy.ccode(value)};" for name, value in bindings]
    text = "\n".join([*lines, f"return {sympy.ccode(results[0])};"])
    return {"seconds": time.perf_counter() - start, "bytes": len(text)}


def main(contender: str, depth: str) -> None:
    d = int(depth)
    if contender == "hyad":
        found = hyad_point(straight_model(d), d)
    elif contender == "hyad-loop":
        found = hyad_point(loop_model(d), d)
    else:
        __import__(contender)
        sys.setrecursionlimit(1_000_000)
        found = {"casadi": casadi_point, "sympy": sympy_point}[contender](d)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
