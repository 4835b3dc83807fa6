"""Enzyme on the hand-written primal: its wheel for JAX brings a compiler along, which takes any C++ text. What is made
there is called from the same C loop as all else, by its address."""

from __future__ import annotations

from typing import Any

import numpy as np

from adcpp import primal_text
from adsuite import FOLDER, NESTED_MODES, Objective, Point, Size, problem_of
from measure import CC, Contender, layout, run

# its compiler comes without the headers that the C library's need
PRELUDE = """#define restrict
#define INFINITY __builtin_inf()
extern "C" double exp(double), log(double), tanh(double), sqrt(double), sin(double), cos(double), lgamma(double);
extern "C" double fabs(double);
extern "C" void *memset(void *, int, std::size_t);
extern "C" void *memcpy(void *, const void *, std::size_t);
extern int enzyme_dup, enzyme_dupnoneed, enzyme_dupv, enzyme_const, enzyme_out, enzyme_width;
template <typename R, typename... A> R __enzyme_autodiff(void *, A...);
template <typename R, typename... A> R __enzyme_fwddiff(void *, A...);
{source}
"""

WHERE = """
void where(enzyme::tensor<std::int64_t> &place, const enzyme::tensor<double> &)
{ place() = (std::int64_t)(void *)&by_enzyme; }
"""

# the primal of what moves and of all else, which lies at ``at``
PRIMAL = """
enum {{ RESULTS = {results}, COUNT = {count}, ROOM = {room} }};
static void primal(const double *at, {given}, double *out, double *work)
{{
    {call};
}}
"""

GRADIENT = """
static void gradient(const double *at, {given}, double *g)
{{
    static double work[ROOM], work_bar[ROOM];
    double y = 0, seed = 1;
    memset(work_bar, 0, sizeof work_bar);
    memset(g, 0, COUNT * sizeof(double));
    __enzyme_autodiff<void>((void *)primal, enzyme_const, at, {duals}, enzyme_dupnoneed, &y, &seed,
                            enzyme_dup, work, work_bar);
}}
"""

DERIVE = {
    "gradient": """extern "C" void by_enzyme(const double *at, double *out) {{ gradient(at, {places}, out); }}""",
    # forward over reverse, along ones
    "diagonal": """extern "C" void by_enzyme(const double *at, double *out)
{{
    static double ones[COUNT], g[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    __enzyme_fwddiff<void>((void *)gradient, enzyme_const, at, enzyme_dup, {places}, ones, enzyme_dupnoneed, g, out);
}}""",
    # all columns at once; the last two are each point's own
    "jacobian": """extern "C" void by_enzyme(const double *at, double *out)
{{
    static double seeds[{columns}][COUNT], ys[RESULTS], tangents[{columns}][RESULTS];
    static double work[ROOM], dwork[{columns}][ROOM];
    for (int j = 0; j < {columns}; j++)
        for (int i = 0; i < COUNT; i++) seeds[j][i] = j == (i < 26 ? i : 26 + i % 2);
    __enzyme_fwddiff<void>((void *)primal, enzyme_width, {columns}, enzyme_const, at, {tangents},
                           enzyme_dupv, sizeof ys, ys, tangents, enzyme_dupv, sizeof work, work, dwork);
    for (int i = 0; i < RESULTS; i++)
        for (int j = 0; j < {columns}; j++)
            out[j < 26 ? 26 * i + j : 26 * RESULTS + 2 * i + j - 26] = tangents[j][i];
}}""",
}

# two reverse passes for each observation
BLOCKS = """
static void one(const double *p, const double *feature, double *out) {{ residual(p, p + 11, p[14], feature, out); }}

extern "C" void by_enzyme(const double *at, double *out)
{{
    const long long *seen = (const long long *)(const void *)(at + {seen_by});
    const long long *which = (const long long *)(const void *)(at + {point_of});
    for (int o = 0; o < {m}; o++) {{
        double p[15], y[2];
        for (int j = 0; j < 11; j++) p[j] = at[{cameras} + 11 * seen[o] + j];
        for (int j = 0; j < 3; j++) p[11 + j] = at[{points} + 3 * which[o] + j];
        p[14] = at[{weights} + o];
        for (int k = 0; k < 2; k++) {{
            double seed[2] = {{1.0 - k, 1.0 * k}};
            for (int j = 0; j < 15; j++) out[30 * o + 15 * k + j] = 0;
            __enzyme_autodiff<void>((void *)one, enzyme_dup, p, out + 30 * o + 15 * k, enzyme_const,
                                    at + {features} + 2 * o, enzyme_dupnoneed, y, seed);
        }}
        out[30 * {m} + o] = -2 * p[14];
    }}
}}
"""

NESTED = """#define OUTER {outer}
#define INNER {inner}
{source}
extern "C" void by_enzyme(const double *at, double *out) {{ {call}; }}
"""


def text_of(objective: Objective, size: Size, point: Point, derivative: str) -> str:
    """A C++ function ``by_enzyme`` of a point of the bank and of the results."""
    if derivative in NESTED_MODES:
        source = (FOLDER / "nested_enzyme.cpp").read_text()
        call = "*out = particle(*at)" if objective.name == "particle" else "saddle(at, out)"
        outer, inner = (str(mode == "r").lower() for mode in derivative)
        return PRELUDE.format(source=NESTED.format(outer=outer, inner=inner, source=source, call=call))
    problem = problem_of(objective, size, point, derivative)
    starts = dict(zip((i.name for i in problem.inputs), layout(problem, 0)[0]))
    text = PRELUDE.format(source=primal_text(objective, derivative).replace("#include <math.h>", ""))
    text = text.replace("#include <string.h>", "")
    if derivative == "blocks":
        return text + BLOCKS.format(**starts, m=size["m"])
    moving = objective.wrt or tuple(name for name in ("theta", "us") if name in point)
    names = {name: f"(at + {start})" if np.ndim(point[name]) else f"at[{start}]" for name, start in starts.items()}
    names |= {name: name for name in moving} | {"out": "out", "work": "work"}
    _, call, room = objective.by_hand["primal"]
    for key, number in size.items():
        call = call.replace("{" + key + "}", str(number))
    firsts = dict(zip(moving, np.cumsum([0, *(np.size(point[name]) for name in moving)])))
    filled: dict[str, Any] = {
        "results": problem_of(objective, size, point, "primal").results(0),
        "count": sum(np.size(point[name]) for name in moving),
        "room": max(1, int(eval(room, {"__builtins__": {}}, dict(size)))),
        "call": call.format(**names),
        "columns": 28 if "us" in moving else 26,
        "given": ", ".join(f"const double *{name}" for name in moving),
        "places": ", ".join(f"at + {starts[name]}" for name in moving),
        "duals": ", ".join(f"enzyme_dup, {name}, g + {first}" for name, first in firsts.items()),
        "tangents": ", ".join(
            f"enzyme_dupv, sizeof seeds[0], at + {starts[name]}, &seeds[0][{first}]" for name, first in firsts.items()
        ),
    }
    parts = [PRIMAL, *([] if derivative == "jacobian" else [GRADIENT]), DERIVE[derivative]]
    return text + "".join(part.format(**filled) for part in parts)


def address_of(text: str) -> int:
    """Where ``by_enzyme`` is, compiled for this processor; it stays there."""
    import jax
    from enzyme_ad.jax import cpp_call

    jax.config.update("jax_enable_x64", True)
    target = run([CC, "-march=native", "-Q", "--help=target"])
    processor = next(line.split()[1] for line in target.splitlines() if line.split()[:1] == ["-march="])
    flags = ("-O3", "-target-cpu", processor, "-ffp-contract=on")
    shapes = [jax.core.ShapedArray([], np.int64)]
    made = jax.jit(lambda x: cpp_call(x, out_shapes=shapes, source=text + WHERE, fn="where", argv=flags)[0])
    return int(made(np.float64(0)))


def contender(objective: Objective, size: Size, point: Point, derivative: str) -> Contender:
    """A C function that calls it."""
    made = address_of(text_of(objective, size, point, derivative))
    source = (
        "void enzyme(const double *at, double *out)\n"
        f"{{\n    ((void (*)(const double *, double *)){made}L)(at, out);\n}}\n"
    )
    return Contender("enzyme_ad", source, "void enzyme(const double *at, double *out);", "enzyme(at, {out})")
