"""The symbolic generators that write C: each function takes a problem to C text, as its documentation would have it.

Run as ``python peers.py PEER PROBLEM N FOLDER``: derive, write and compile in this process, and print what was built
as one line of JSON. ``run.py`` does so with a time limit, since some of these do not come back.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import Contender, build
from suite import HESSIAN, JACOBIAN, PROBLEMS, VALUE_AND_GRADIENT, Problem, nest


def symbols_of(problem: Problem, n: int, make: Any) -> tuple[list[Any], list[Any]]:
    """A symbol per number of a point, and the differentiated ones among them."""
    symbols, active = [], []
    for given in problem.inputs:
        new = [make(f"{given.name}_{i}") for i in range(given.count(n))]
        symbols += new
        active += new if given.active else []
    return symbols, active


def c_of(problem: Problem, n: int, expressions: Any, cse: Any, ccode: Any) -> str:
    """A C function of cse's bindings: what SymPy and SymEngine leave to the user."""
    bindings, results = cse(expressions)
    names = {}
    for given in problem.inputs:
        for i in range(given.count(n)):
            names[f"{given.name}_{i}"] = f"{given.name}[{i}]" if given.shape(n) else given.name
    pattern = re.compile(r"\b(?:" + "|".join(sorted({g.name for g in problem.inputs})) + r")_\d+\b")

    def text(e: Any) -> str:
        return pattern.sub(lambda found: names[found[0]], ccode(e))

    lines = [f"    const double {name} = {text(value)};" for name, value in bindings]
    lines += [f"    out[{i}] = {text(value)};" for i, value in enumerate(results)]
    return "\n".join(["#include <math.h>", "", prototype(problem, n), "{", *lines, "}", ""])


def prototype(problem: Problem, n: int) -> str:
    given = [f"const double *restrict {i.name}" if i.shape(n) else f"double {i.name}" for i in problem.inputs]
    return f"void peer({', '.join(given)}, double *restrict out)"


def call_of(problem: Problem) -> str:
    return f"peer({', '.join('{' + i.name + '}' for i in problem.inputs)}, {{out}})"


def sympy_c(problem: Problem, n: int) -> Contender:
    import sympy

    start = time.perf_counter()
    symbols, active = symbols_of(problem, n, lambda name: sympy.Symbol(name, real=True))
    y = problem.primal(sympy, *nest(problem, n, symbols))
    if problem.kind == HESSIAN:
        results = list(sympy.hessian(y, active))
    else:
        rows = y if isinstance(y, list) else [y]
        results = list(sympy.Matrix(rows).jacobian(active))
        results = [y, *results] if problem.kind == VALUE_AND_GRADIENT else results
    source = c_of(problem, n, results, lambda e: sympy.cse(e, symbols=sympy.numbered_symbols("t")), sympy.ccode)
    spent = time.perf_counter() - start
    return Contender("SymPy cse C", source, prototype(problem, n) + ";", call_of(problem), spent)


def symengine_c(problem: Problem, n: int) -> Contender:
    import symengine

    start = time.perf_counter()
    symbols, active = symbols_of(problem, n, symengine.Symbol)
    y = problem.primal(symengine, *nest(problem, n, symbols))
    rows = [y.diff(a) for a in active] if problem.kind == HESSIAN else (y if isinstance(y, list) else [y])
    results = [row.diff(a) for row in rows for a in active]
    results = [y, *results] if problem.kind == VALUE_AND_GRADIENT else results
    source = c_of(problem, n, results, symengine.cse, symengine.ccode)
    spent = time.perf_counter() - start
    return Contender("SymEngine C", source, prototype(problem, n) + ";", call_of(problem), spent)


def casadi_c(problem: Problem, n: int) -> Contender:
    import casadi

    start = time.perf_counter()
    given = [casadi.SX.sym(i.name, i.count(n)) for i in problem.inputs]
    numbers = [s[k] for s in given for k in range(s.shape[0])]
    y = problem.primal(casadi, *nest(problem, n, numbers))
    x = casadi.vertcat(*(s for s, i in zip(given, problem.inputs) if i.active))
    if problem.kind == HESSIAN:
        result = casadi.hessian(y, x)[0]
    elif problem.kind == JACOBIAN:
        result = casadi.jacobian(casadi.vertcat(*y), x).T  # column-major there, row-major here
    else:
        result = casadi.gradient(y, x)
    if problem.kind == VALUE_AND_GRADIENT:
        result = casadi.vertcat(y, result)
    function = casadi.Function("peer", given, [casadi.densify(result)])
    source = function_text(casadi, function)
    spent = time.perf_counter() - start
    addresses = ", ".join(i.name if i.shape(n) else f"&{i.name}" for i in problem.inputs)
    declaration = (
        "int peer(const double **arg, double **res, long long *iw, double *w, int mem);\n"
        f"static {prototype(problem, n).replace('peer', 'call_peer')}\n"
        f"{{ static double casadi_w[{function.sz_w() + 1}]; static long long casadi_iw[{function.sz_iw() + 1}];\n"
        f"  const double *arg[] = {{{addresses}}}; double *res[] = {{out}}; peer(arg, res, casadi_iw, casadi_w, 0); }}"
    )
    return Contender("CasADi C", source, declaration, f"call_{call_of(problem)}", spent)


def function_text(casadi: Any, function: Any) -> str:
    generator = casadi.CodeGenerator("peer.c")
    generator.add(function)
    return generator.dump()


WF_SPAN = """#pragma once
// The three functions of wrenfold's span.h that its C++ calls, for plain pointers.
namespace wf {
template <int Rows, int Cols, typename T> struct span {
  T *data;
  T &operator()(int i, int j) const { return data[i * Cols + j]; }
  explicit operator bool() const { return data != nullptr; }
};
template <int Rows, int Cols> span<Rows, Cols, const double> make_input_span(const double *p) { return {p}; }
template <int Rows, int Cols> span<Rows, Cols, double> make_output_span(double *p) { return {p}; }
}
"""


def wrenfold_c(problem: Problem, n: int) -> Contender:
    from wrenfold import code_generation, sym, type_info

    start = time.perf_counter()
    described = code_generation.FunctionDescription("generated")
    numbers, active = [], []
    for given in problem.inputs:
        size = given.count(n)
        if given.shape(n):
            symbol = described.add_input_argument(given.name, type_info.MatrixType(size, 1))
            new = [symbol[i] for i in range(size)]
        else:
            new = [described.add_input_argument(given.name, type_info.ScalarType(type_info.NumericType.Float))]
        numbers += new
        active += new if given.active else []
    y = problem.primal(sym, *nest(problem, n, numbers))
    if problem.kind == HESSIAN:
        result = sym.jacobian(sym.jacobian([y], active), active)
    else:
        result = sym.jacobian(y if isinstance(y, list) else [y], active)
    if problem.kind == VALUE_AND_GRADIENT:
        result = sym.hstack([sym.matrix([y]), result])
    described.add_output_argument("out", False, result)
    generator = code_generation.CppGenerator()
    text = generator.generate(code_generation.transpile(described))
    spent = time.perf_counter() - start
    plain = prototype(problem, n).replace(" *restrict", " *")
    call = f"generated<double>({', '.join(i.name for i in problem.inputs)}, out);"
    source = f'#include <cmath>\n#include "span.h"\n{text}\nextern "C" {plain} {{ {call} }}\n'
    return Contender(
        "wrenfold C++",
        source,
        prototype(problem, n) + ";",
        call_of(problem),
        spent,
        suffix=".cpp",
        header=("span.h", WF_SPAN),
    )


def hyad_c(problem: Problem, n: int) -> Contender:
    from hyad_contender import derivative_of

    return derivative_of(problem, n, fixed=False)


def hyad_fixed_c(problem: Problem, n: int) -> Contender:
    from hyad_contender import derivative_of

    return derivative_of(problem, n, fixed=True)


def hyad_vector_c(problem: Problem, n: int) -> Contender | None:
    """None where hyad's own functions change nothing."""
    from hyad_contender import derivative_of

    fixed = "{n}" in problem.call
    made = derivative_of(problem, n, fixed, math="vector")
    return None if made.source == derivative_of(problem, n, fixed).source else made


PEERS = {
    "hyad": hyad_c,
    "hyad-fixed": hyad_fixed_c,
    "hyad-vector": hyad_vector_c,
    "casadi": casadi_c,
    "wrenfold": wrenfold_c,
    "sympy": sympy_c,
    "symengine": symengine_c,
}
TITLES = {
    "hyad": "hyad",
    "hyad-fixed": "hyad, n fixed",
    "hyad-vector": "hyad, vector math",
    "casadi": "CasADi C",
    "wrenfold": "wrenfold C++",
    "sympy": "SymPy cse C",
    "symengine": "SymEngine C",
}
KEPT = ("name", "prepare", "compile", "work", "machine_bytes", "library", "source_bytes")


def main(peer: str, name: str, size: str, folder: str) -> None:
    import importlib

    if peer.startswith("hyad"):
        import hyad_contender  # noqa: F401, the import is not part of the time to derive
    else:
        importlib.import_module(peer)
    sys.setrecursionlimit(100_000)  # a courtesy to generators that recurse over the expression
    problem = next(p for p in PROBLEMS if p.name == name)
    made = PEERS[peer](problem, int(size))
    if made is None:
        print("null")
        return
    contender = build(made, problem, int(size), Path(folder))
    record = asdict(contender) | {"source_bytes": len(contender.source)}
    print(json.dumps({key: record[key] for key in KEPT}))


if __name__ == "__main__":
    main(*sys.argv[1:])
