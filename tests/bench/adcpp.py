"""The C++ libraries that overload operators, on the hand-written primal: its text is compiled once more as C++, with
their number in place of ``double``.

ADOL-C writes a tape at the first call and goes over it at all others, and writes it again when a comparison comes out
otherwise. Sacado (``Sacado::Rad``) notes a gradient anew at each call.
"""

from __future__ import annotations

import subprocess
from typing import Any

from adsuite import Objective, Point, Size, problem_of
from measure import CXX, FLAGS, Contender, layout

# lgamma is of a prior's constant alone, which nothing is derived by.
PRELUDE = """#include <cmath>
#include <cstring>
#include <vector>
{include}
typedef {number} real;
#define restrict
static inline real known_lgamma(const real &x) {{ return (lgamma)({value}); }}
#define lgamma(x) known_lgamma(x)
#define memcpy(to, from, bytes) copied((real *)(to), (const real *)(from), (bytes) / sizeof(real))
#define memset(to, zero, bytes) cleared(to, (bytes) / sizeof(real))
static inline void copied(real *to, const real *from, size_t count) {{ while (count--) *to++ = *from++; }}
static inline void cleared(real *to, size_t count) {{ while (count--) *to++ = 0.0; }}
#define double real
{source}
#undef double
"""

ADOLC = """
enum {{ COUNT = {count}, RESULTS = {results} }};
static double xs[COUNT], ys[RESULTS];

static void record(const double *at)
{{
    size_t room[4] = {{1 << 27, 1 << 27, 1 << 27, 1 << 27}}, sizes[STAT_SIZE]; // all of it stays in memory
    for (int tape = 1; tape >= 0; tape--) {{ // the first finds out how long a tape is, and goes
        trace_on(tape, 0, room[0], room[1], room[2], room[3]);
        std::vector<real> moving(COUNT), out(RESULTS), work({work});
        for (int i = 0; i < COUNT; i++) moving[i] <<= xs[i];
        {given}
        {call};
        for (int i = 0; i < RESULTS; i++) out[i] >>= ys[i];
        trace_off();
        tapestats(tape, sizes);
        const StatEntries which[] = {{NUM_OPERATIONS, NUM_LOCATIONS, NUM_VALUES, NUM_OPERATIONS}};
        for (int i = 0; i < 4; i++) room[i] = (i < 3 ? 1 : 3) * sizes[which[i]] + 1000;
    }}
    removeTape(1, ADOLC_REMOVE_COMPLETELY);
}}

static int derive(double *out)
{{
    {derive}
}}

extern "C" void adolc(const double *at, double *out)
{{
    static int recorded;
    {gather}
    if (!recorded++ || derive(out) < 0) {{
        record(at);
        derive(out);
    }}
}}
"""

# what ``derive`` says: a gradient; the Hessian times ones; tangents along COLUMNS directions, the last two being each
# point's own; adjoints of the two residuals of each row of 15
DERIVE = {
    "gradient": "return gradient(0, COUNT, xs, out);",
    "diagonal": """static double ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    return hess_vec(0, COUNT, xs, ones, out);""",
    "jacobian": """static double **seeds = myalloc2(COUNT, {columns}), **tangents = myalloc2(RESULTS, {columns});
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < {columns}; j++) seeds[i][j] = j == (i < 26 ? i : 26 + i % 2);
    const int status = fov_forward(0, RESULTS, COUNT, {columns}, xs, seeds, ys, tangents);
    for (int i = 0; i < RESULTS; i++)
        for (int j = 0; j < {columns}; j++)
            out[j < 26 ? 26 * i + j : 26 * RESULTS + 2 * i + j - 26] = tangents[i][j];
    return status;""",
    "blocks": """static double **seeds = myalloc2(2, RESULTS), **adjoints = myalloc2(2, COUNT);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < RESULTS; i++) seeds[k][i] = i % 2 == k;
    const int status = zos_forward(0, RESULTS, COUNT, 1, xs, ys);
    fov_reverse(0, RESULTS, COUNT, 2, seeds, adjoints);
    for (int o = 0; o < RESULTS / 2; o++)
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < 15; j++) out[30 * o + 15 * k + j] = adjoints[k][15 * o + j];
    for (int o = 0; o < RESULTS / 2; o++) out[15 * RESULTS + o] = -2 * xs[15 * o + 14];
    return status;""",
}

SACADO = """
extern "C" void sacado(const double *at, double *result)
{{
    enum {{ COUNT = {count}, RESULTS = {results} }};
    static double xs[COUNT];
    {gather}
    std::vector<real> moving(COUNT), out(RESULTS), work({work});
    for (int i = 0; i < COUNT; i++) moving[i] = xs[i];
    {given}
    {call};
    real::Gradcomp();
    for (int i = 0; i < COUNT; i++) result[i] = moving[i].adj();
}}
"""

OVER_ROWS = """for (int o = 0; o < RESULTS / 2; o++) {
            real *p = &moving[15 * o];
            residual(p, p + 11, p[14], features.data() + 2 * o, &out[2 * o]);
        }"""
INCLUDE = ["-isystem", "/usr/include/trilinos"]  # where Debian has Sacado
CPP_FLAGS = [*FLAGS, "-w", *INCLUDE]
HEADERS = {
    "adolc": ("adolc/adolc.h", "ADOL-C (Debian: libadolc-dev)"),
    "sacado": ("Sacado_trad.hpp", "Sacado (Debian: libtrilinos-sacado-dev, libtrilinos-kokkos-dev)"),
}


def primal_text(objective: Objective, derivative: str) -> str:
    """The hand-written text without the derivative's."""
    return objective.source.partition(objective.by_hand[derivative][0].partition("(")[0] + "(")[0]


def contender(library: str, objective: Objective, size: Size, point: Point, derivative: str) -> Contender:
    """The derivative by one of the two libraries, as C++ that makes what it needs at its first call."""
    header, title = HEADERS[library]
    probe = [CXX, *INCLUDE, "-x", "c++", "-E", "-"]
    if subprocess.run(probe, input=f"#include <{header}>\n", capture_output=True, text=True).returncode:
        raise ModuleNotFoundError(f"{title} is not installed")
    moving = objective.wrt or tuple(name for name in ("theta", "us") if name in point)
    problem, primal = (problem_of(objective, size, point, name) for name in (derivative, "primal"))
    starts = dict(zip((i.name for i in problem.inputs), layout(problem, 0)[0]))
    shapes = {i.name: i.shape(0) for i in problem.inputs}
    counts = {i.name: i.count(0) for i in problem.inputs}
    results = primal.results(0)
    gather, given, names = [], [], {"out": "out.data()", "work": "work.data()"}
    if derivative == "blocks":  # the rows of camera, point and weight are what moves: each block has its own row
        results = 2 * size["m"]
        count = 15 * size["m"]
        gather.append(ROWS.format(**starts, m=size["m"]))
        given.append(f"std::vector<real> features(at + {starts['features']}, at + {starts['features'] + results});")
    else:
        count = 0
        for name in moving:
            gather.append(f"for (int i = 0; i < {counts[name]}; i++) xs[{count} + i] = at[{starts[name]} + i];")
            names[name] = f"(moving.data() + {count})"
            count += counts[name]
        for name, start in starts.items():
            whole = name in point and getattr(point[name], "dtype", None) is not None and point[name].dtype.kind == "i"
            if name in moving:
                continue
            if whole or not shapes[name]:
                names[name] = f"(at + {start})" if shapes[name] else f"at[{start}]"
            else:
                given.append(f"std::vector<real> {name}_(at + {start}, at + {start + counts[name]});")
                names[name] = f"{name}_.data()"
    _, call, room = objective.by_hand["primal"]
    for key, number in size.items():
        call = call.replace("{" + key + "}", str(number))
    call = OVER_ROWS if derivative == "blocks" else call.format(**names)
    columns = 28 if "us" in moving else 26
    filled: dict[str, Any] = {
        "count": count,
        "results": results,
        "columns": columns,
        "work": int(eval(room, {"__builtins__": {}}, dict(size))),
        "gather": "\n    ".join(gather),
        "given": "\n        ".join(given),
        "call": call,
    }
    if library == "adolc":
        number, value, libraries = "adouble", "x.value()", ("-ladolc",)
        body = ADOLC.format(**filled, derive=DERIVE[derivative].format(columns=columns))
    else:
        if derivative != "gradient":
            raise NotImplementedError("gradients only: its forward mode is not in Debian's packages alone")
        number, value, libraries = "Sacado::Rad::ADvar<double>", "x.val()", ("-ltrilinos_sacado",)
        body = SACADO.format(**filled)
    text = primal_text(objective, derivative)
    if library == "sacado":  # its numbers do not go with other integers
        text = text.replace("long long", "int")
    source = PRELUDE.format(include=f"#include <{header}>", number=number, value=value, source=text) + body
    declaration = f"void {library}(const double *at, double *out);"
    return Contender(library, source, declaration, f"{library}(at, {{out}})", suffix=".cpp", libraries=libraries)


ROWS = """const long long *seen = (const long long *)(const void *)(at + {seen_by});
    const long long *which = (const long long *)(const void *)(at + {point_of});
    for (int o = 0; o < {m}; o++) {{
        for (int j = 0; j < 11; j++) xs[15 * o + j] = at[{cameras} + 11 * seen[o] + j];
        for (int j = 0; j < 3; j++) xs[15 * o + 11 + j] = at[{points} + 3 * which[o] + j];
        xs[15 * o + 14] = at[{weights} + o];
    }}"""
