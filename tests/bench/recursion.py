"""Recursion and loops whose length is in the data: gradients against their primals, in C.

A ``Walk`` is a model whose arguments may be trees: ``problems/NAME.hy`` for hyad, ``problems/NAME.c`` by hand, both the
value and the gradient, and a Python function over a mathematics ``m`` for the reference and for the tools that run
Python. What is timed is one pass over all points: for trees the whole corpus, a call for each tree.

Every gradient is checked: by hand and hyad's against each other at every point, and both at the first ones against
differences in 60 digits.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import mpmath
import numpy as np

from measure import Contender, Timing, aligned, alternate, compiled
from reference import GATE, error
from suite import FOLDER, expr30

TREES = Path(__file__).parents[3] / "shared" / "data" / "sst_dev_trees.txt"
CHECKED = 8  # points at which gradients are compared with differences
WORK = 1 << 16  # reals of workspace for the code by hand


# ------------------------------------------------------------------------------------------------ trees


def corpus(path: Path | None) -> tuple[list[Any], str]:
    """Trees, and where they are from. A leaf is (label, x), a node (label, left, right).

    Without the file of labelled parse trees (the development set of the Stanford Sentiment Treebank, one
    s-expression a line) trees of like sizes are drawn.
    """
    given = path or Path(os.environ.get("HYAD_SST_TREES", TREES))
    if given.is_file():
        return [parsed(line) for line in given.read_text(encoding="utf-8").splitlines() if line.strip()], given.name
    if path is not None or "HYAD_SST_TREES" in os.environ:
        raise FileNotFoundError(f"there are no trees in {given}")
    where = "sst_dev_trees.txt was not found: give its path with --trees or in HYAD_SST_TREES"
    rng = np.random.default_rng(3)
    return [drawn(int(n), rng) for n in np.clip(rng.gamma(4.0, 4.9, 1101), 2, 60)], f"random trees ({where})"


def parsed(line: str) -> Any:
    """``(3 (2 It) (4 ...))``; the number of a word, in (-1, 1), is made from its letters."""
    stack: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", line):
        if token == "(":
            stack.append([])
        elif token == ")":
            label, *rest = stack.pop()
            words = [r for r in rest if isinstance(r, str)]
            made = (int(label), crc32(words[0].encode()) / 2**31 - 1) if words else (int(label), *rest)
            stack[-1].append(made)
        else:
            stack[-1].append(token)
    return stack[0][0]


def drawn(leaves: int, rng: np.random.Generator) -> Any:
    """A random tree: as often as a sentence's, the left part is short."""
    label = int(rng.integers(5))
    if leaves == 1:
        return (label, float(rng.uniform(-1, 1)))
    left = min(leaves - 1, int(rng.geometric(0.4)))
    left = left if rng.random() < 0.75 else leaves - left
    return (label, drawn(left, rng), drawn(leaves - left, rng))


def postorder(tree: Any) -> Iterator[Any]:
    if len(tree) == 3:
        yield from postorder(tree[1])
        yield from postorder(tree[2])
    yield tree


# --------------------------------------------------------------------------------------------- the models


@dataclass(frozen=True, eq=False)
class Walk:
    """``inputs``: name, kind ("tree", "vector", "real" or "int"), and whether it is differentiated. ``points`` draws
    the arguments of all calls; a vector is the same in all of them. ``target``: the gradient over the primal."""

    name: str
    title: str
    inputs: tuple[tuple[str, str, bool], ...]
    primal: Callable[..., Any]
    points: Callable[[list[Any], np.random.Generator], list[tuple[Any, ...]]]
    target: float
    work: bool = False

    @property
    def active(self) -> tuple[str, ...]:
        return tuple(name for name, _, active in self.inputs if active)

    def width(self, point: Sequence[Any]) -> int:
        """The numbers of a gradient."""
        return sum(np.size(a) for a, (_, _, active) in zip(point, self.inputs) if active)


def treelstm(m: Any, tree: Any, w: Any) -> Any:
    def sigmoid(x: Any) -> Any:
        return 1 / (1 + m.exp(-x))

    def nll(h: Any, label: int) -> Any:
        scores = [w[20 + k] * h + w[25 + k] for k in range(5)]
        return m.log(sum(m.exp(s) for s in scores)) - scores[label]

    def state(t: Any) -> Any:
        if len(t) == 2:
            label, x = t
            i, o = sigmoid(w[0] * x + w[1]), sigmoid(w[2] * x + w[3])
            c = i * m.tanh(w[4] * x + w[5])
            h = o * m.tanh(c)
            return h, c, nll(h, label)
        label, left, right = t
        hl, cl, el = state(left)
        hr, cr, er = state(right)
        i = sigmoid(w[6] * hl + w[7] * hr + w[8])
        fl = sigmoid(w[9] * hl + w[10] * hr + w[13])
        fr = sigmoid(w[11] * hl + w[12] * hr + w[13])
        o = sigmoid(w[14] * hl + w[15] * hr + w[16])
        u = m.tanh(w[17] * hl + w[18] * hr + w[19])
        c = i * u + fl * cl + fr * cr
        h = o * m.tanh(c)
        return h, c, nll(h, label) + el + er

    return state(tree)[2]


def treernn(m: Any, tree: Any, a: Any, b: Any, c: Any) -> Any:
    if len(tree) == 2:
        return m.tanh(a * tree[1])
    return m.tanh(b * treernn(m, tree[1], a, b, c) + c * treernn(m, tree[2], a, b, c))


def treesum(m: Any, tree: Any, a: Any, b: Any) -> Any:
    return a * tree[1] if len(tree) == 2 else b * treesum(m, tree[1], a, b) + treesum(m, tree[2], a, b)


def kepler(m: Any, mean: Any, e: Any) -> Any:
    x, step = mean, 1
    while abs(step) > 1e-10:
        step = (x - e * m.sin(x) - mean) / (1 - e * m.cos(x))
        x = x - step
    return x


def growth(m: Any, r: Any, k: Any, y: Any) -> Any:
    t = 0 * y
    while t < 10:
        slope = r * y * (1 - y / k)
        h = 0.01 / (1 + abs(slope))
        y, t = y + h * slope, t + h
    return y


def power(m: Any, x: Any, n: int) -> Any:
    return x * 0 + 1 if n == 0 else x * m.sin(power(m, x, n - 1))


def fibonacci(m: Any, x: Any, y: Any, n: int) -> Any:
    return x if n < 2 else y * fibonacci(m, x, y, n - 1) + x * fibonacci(m, x, y, n - 2)


TREE = ("tree", "tree", False)

WALKS = [
    Walk(
        "treelstm",
        "Tree-LSTM with scalar states, loss at every node, 30 parameters",
        (TREE, ("w", "vector", True)),
        treelstm,
        lambda trees, rng: [(t, w) for w in [rng.uniform(-1, 1, 30)] for t in trees],
        2.0,
        work=True,
    ),
    Walk(
        "treernn",
        "a recursive network with one number for a state, 3 parameters",
        (TREE, ("a", "real", True), ("b", "real", True), ("c", "real", True)),
        treernn,
        lambda trees, rng: [(t, 0.9, 0.7, -0.6) for t in trees],
        2.0,
        work=True,
    ),
    Walk(
        "treesum",
        "discounted sums over trees: little but the walk",
        (TREE, ("a", "real", True), ("b", "real", True)),
        treesum,
        lambda trees, rng: [(t, 0.9, 0.7) for t in trees],
        2.0,
    ),
    Walk(
        "kepler",
        "Kepler's equation by Newton's method: a while of a few costly iterations",
        (("m", "real", True), ("e", "real", True)),
        kepler,
        lambda trees, rng: [(rng.uniform(0.3, 3.0), rng.uniform(0.1, 0.9)) for _ in range(64)],
        2.5,
    ),
    Walk(
        "growth",
        "Euler's method with a step that depends on the slope: a while of about 1500 cheap iterations",
        (("r", "real", True), ("k", "real", True), ("y0", "real", True)),
        growth,
        lambda trees, rng: [(rng.uniform(0.5, 2), rng.uniform(1, 3), rng.uniform(0.1, 0.5)) for _ in range(64)],
        2.5,
        work=True,
    ),
    Walk(
        "power",
        "scalar recursion, 5 to 40 calls deep",
        (("x", "real", True), ("n", "int", False)),
        power,
        lambda trees, rng: [(rng.uniform(0.8, 1.3), int(rng.integers(5, 41))) for _ in range(64)],
        2.5,
    ),
    Walk(
        "fibonacci",
        "scalar recursion, two calls in each",
        (("x", "real", True), ("y", "real", True), ("n", "int", False)),
        fibonacci,
        lambda trees, rng: [(*rng.uniform(0.3, 0.9, 2), int(rng.integers(6, 13))) for _ in range(64)],
        2.5,
    ),
]


def reference(walk: Walk, point: Sequence[Any]) -> np.ndarray:
    """The gradient at a point by central differences in 60 digits."""
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -20

        def value(at: int, step: Any) -> Any:
            arguments, k = [], 0
            for a, (_, _, active) in zip(point, walk.inputs):
                if not active:
                    arguments.append(a)
                    continue
                numbers = [mpmath.mpf(float(x)) for x in np.ravel(a)]
                if k <= at < k + len(numbers):
                    numbers[at - k] += step
                k += len(numbers)
                arguments.append(numbers if np.ndim(a) else numbers[0])
            return walk.primal(mpmath, *arguments)

        return np.array([float((value(i, h) - value(i, -h)) / (2 * h)) for i in range(walk.width(point))])


# ------------------------------------------------------------------------------------------------------ C

LOOP = """#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
{declaration}

static const TREE **trees;
static const double *bank, *w;
static double *work;

/* The trees from their nodes in postorder; a kind is 1 for a leaf, and 2 more where a tree ends. */
void bench_trees(long nodes, long count, const char *kind, const long long *label, const double *x)
{{
    const TREE *stack[8192];
    TREE *cells = malloc((nodes + 1)*sizeof *cells);
    int top = 0;
    trees = malloc((count + 1)*sizeof *trees);
    for (long n = 0, k = 0; n < nodes; n++) {{
        if (kind[n] & 1) {{
            LEAF(cells[n], label[n], x[n]);
        }} else {{
            top -= 2;
            NODE(cells[n], label[n], stack[top], stack[top + 1]);
        }}
        stack[top++] = &cells[n];
        if (kind[n] & 2) trees[k++] = stack[--top];
    }}
}}

void bench_numbers(const double *numbers, const double *vector, double *room)
{{
    bank = numbers, w = vector, work = room;
}}

static int call(long k, double *out)
{{
    const double *at = bank + {stride}*k;
    int status = 0;
    {call};
    (void)at, (void)work;
    return status;
}}

int bench_each(long points, long width, double *results)
{{
    int status = 0;
    for (long k = 0; k < points; k++) status |= call(k, results + k*width);
    return status;
}}

static double seconds_of(clockid_t which)
{{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + 1e-9*t.tv_nsec;
}}

int bench_run(long reps, long points, double *seconds)
{{
    static double out[64];
    int status = 0;
    const double cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID), wall = seconds_of(CLOCK_MONOTONIC);
    for (long r = 0; r < reps; r++)
        for (long k = 0; k < points; k++) status |= call(k, out);
    seconds[0] = seconds_of(CLOCK_MONOTONIC) - wall;
    seconds[1] = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    return status;
}}

static void *one(void *number)
{{
    double out[64];
    if (*(long *)number >= 0) call(*(long *)number, out);
    return NULL;
}}

/* The bytes of the stack that a call takes (-1: a thread without one): it runs on one that was painted before. */
long bench_stack(long k)
{{
    const size_t size = 8 << 20, page = 4096;
    unsigned char *stack;
    pthread_t thread;
    pthread_attr_t attributes;
    if (posix_memalign((void **)&stack, page, size)) return -1;
    memset(stack, 0xA5, size);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, size);
    if (pthread_create(&thread, &attributes, one, &k)) return -1;
    pthread_join(thread, NULL);
    size_t free_bytes = 0;
    while (free_bytes < size && stack[free_bytes] == 0xA5) free_bytes++;
    free(stack);
    return (long)(size - free_bytes);
}}
"""

HAND_TREE = """#include "tree.h"
typedef struct tree TREE;
#define LEAF(cell, l, v) cell = (TREE){.leaf = 1, .label = (int)(l), .x = (v)}
#define NODE(cell, l, a, b) cell = (TREE){.label = (int)(l), .left = (a), .right = (b)}
"""
NO_TREE = """typedef struct { int none; } TREE;
#define LEAF(cell, l, v) (void)(cell)
#define NODE(cell, l, a, b) (void)(cell)
"""
C_TYPES = {"tree": "const struct tree *", "vector": "const double *", "real": "double ", "int": "long long "}


def stride_of(walk: Walk) -> int:
    return sum(kind in ("real", "int") for _, kind, _ in walk.inputs) or 1


def call_arguments(walk: Walk) -> list[str]:
    """The arguments of call number k, in C."""
    texts, at = [], 0
    for _, kind, _ in walk.inputs:
        if kind in ("tree", "vector"):
            texts.append({"tree": "trees[k]", "vector": "w"}[kind])
        else:
            texts.append(f"at[{at}]" if kind == "real" else f"(long long)at[{at}]")
            at += 1
    return texts


def has_tree(walk: Walk) -> bool:
    return any(kind == "tree" for _, kind, _ in walk.inputs)


def by_hand(walk: Walk, gradient: bool) -> Contender:
    given = ", ".join(f"{C_TYPES[kind]}{name}" for name, kind, _ in walk.inputs)
    tree = HAND_TREE if has_tree(walk) else NO_TREE
    source = (FOLDER / f"{walk.name}.c").read_text()
    header = ("tree.h", (FOLDER / "tree.h").read_text())
    arguments = call_arguments(walk)
    if gradient:
        declaration = f"void {walk.name}_grad({given}, double *g{', void *work' if walk.work else ''});"
        call = f"{walk.name}_grad({', '.join([*arguments, 'out', *(['work'] if walk.work else [])])})"
        return Contender("hand gradient", source, tree + declaration, call, header=header)
    declaration = f"double {walk.name}({given});"
    return Contender("hand", source, tree + declaration, f"out[0] = {walk.name}({', '.join(arguments)})", header=header)


def by_hyad(walk: Walk, gradient: bool, encoding: str = "record") -> Contender:
    """hyad's value or gradient, through its public functions."""
    from hyad_contender import compiler_seconds, empty_cache, hyad

    with empty_cache() as folder:
        path = folder / "models.hy"
        path.write_text((FOLDER / f"{walk.name}.hy").read_text())
        start, before = time.perf_counter(), compiler_seconds()
        models = hyad.load(path)
        model = getattr(models, walk.name)
        active = walk.active if len(walk.active) > 1 else walk.active[0]
        asked = hyad.grad(model, wrt=active, encoding=encoding) if gradient else model
        f = hyad.compile(asked, target="c", args=example(walk, models)).cfunction
        spent = time.perf_counter() - start
        compiler = min(spent, compiler_seconds() - before)
    return contender_of(walk, f, f"hyad {encoding} gradient" if gradient else "hyad", spent - compiler, compiler)


def example(walk: Walk, models: Any) -> tuple[Any, ...]:
    """Arguments of the types that are meant: a data type's fields have no annotations."""
    point = walk.points([(0, (1, 0.5), (2, 0.25))], np.random.default_rng(0))[0]

    def tree(t: Any) -> Any:
        return models.Leaf(*t) if len(t) == 2 else models.Node(t[0], tree(t[1]), tree(t[2]))

    return tuple(tree(a) if kind == "tree" else a for a, (_, kind, _) in zip(point, walk.inputs))


def contender_of(walk: Walk, f: Any, name: str, prepare: float, compiler: float) -> Contender:
    """hyad's C with the call to make."""
    arguments = call_arguments(walk)
    before = "status |= " if f.fallible or f.arena else ""
    if f.returns_value:
        before = "out[0] = "
    else:
        at = 0
        for result in f.results:
            arguments.append(f"out + {at}")
            at += int(np.prod(result.dims, dtype=int))
    if f.workspace is not None:
        arguments.append("work")
    declaration = [f'#include "{f.name}.h"', tree_of(f) if has_tree(walk) else NO_TREE]
    if f.arena:
        declaration.append("static hyad_arena arena;")
        arguments.append("&arena")
    call = f"{before}{f.name}({', '.join(arguments)})"
    header = (f"{f.name}.h", f.header)
    return Contender(name, f.source, "\n".join(declaration), call, prepare, header=header, own_compile=compiler)


def tree_of(f: Any) -> str:
    """How a cell of hyad's type is filled in."""
    (data,) = f.types
    lines = [f"typedef struct {data.cell} TREE;"]
    for macro, c, values in zip(("LEAF", "NODE"), data.constructors, (("l", "v"), ("l", "a", "b"))):
        fields = ", ".join(f"{data.member(c, 'CELL', x.name)} = ({v})" for x, v in zip(c.fields, values))
        fields = fields.replace("CELL->", ".")
        lines.append(f"#define {macro}(cell, {', '.join(values)}) cell = (TREE){{.tag = {data.tag(c)}, {fields}}}")
    return "\n".join(lines) + "\n"


class Passes:
    """A built contender: its results at all points, the seconds of passes over them, the stack of a call."""

    def __init__(self, library: str, walk: Walk, points: Sequence[tuple[Any, ...]], gradient: bool):
        self.library, self.points = ctypes.CDLL(library), len(points)
        self.width = walk.width(points[0]) if gradient else 1
        kinds = [kind for _, kind, _ in walk.inputs]
        self.vector = next((np.array(a, float) for a, kind in zip(points[0], kinds) if kind == "vector"), np.zeros(1))
        rows = [[float(a) for a, kind in zip(p, kinds) if kind in ("real", "int")] or [0.0] for p in points]
        self.bank, self.work = np.array(rows), aligned(WORK)
        pointer = ctypes.c_void_p
        if "tree" in kinds:
            trees = [list(postorder(p[kinds.index("tree")])) for p in points]
            nodes = [n for tree in trees for n in tree]
            kind = np.array([len(n) == 2 for n in nodes], np.int8)
            kind[np.cumsum([len(tree) for tree in trees]) - 1] += 2
            label = np.array([n[0] for n in nodes], np.int64)
            x = np.array([n[1] if len(n) == 2 else 0.0 for n in nodes])
            given = (pointer(a.ctypes.data) for a in (kind, label, x))
            self.library.bench_trees(ctypes.c_long(len(nodes)), ctypes.c_long(len(trees)), *given)
        self.library.bench_numbers(*(pointer(a.ctypes.data) for a in (self.bank, self.vector, self.work)))
        self.library.bench_stack.restype = ctypes.c_long

    def results(self) -> np.ndarray:
        out = np.full((self.points, self.width), np.nan)
        self.check(self.library.bench_each(*map(ctypes.c_long, out.shape), ctypes.c_void_p(out.ctypes.data)))
        return out

    def seconds(self, reps: int) -> tuple[float, float]:
        """Wall and CPU seconds of ``reps`` passes over the points."""
        spent = (ctypes.c_double * 2)()
        self.check(self.library.bench_run(ctypes.c_long(reps), ctypes.c_long(self.points), spent))
        return spent[0], spent[1]

    def stack(self) -> int:
        """The bytes of the stack that the hungriest of (at most 64) calls takes."""
        calls = [-1, *range(0, self.points, -(-self.points // 64))]
        nothing, *taken = (self.library.bench_stack(ctypes.c_long(k)) for k in calls)
        return max(taken) - nothing

    @staticmethod
    def check(status: int) -> None:
        if status:
            raise RuntimeError(f"the compiled function failed its check number {status}")


@dataclass
class Found:
    """What was measured of one way to the gradient: nanoseconds a point, ratios on the wall clock and in CPU time."""

    name: str
    primal: float | None = None
    gradient: float | None = None
    ratio: tuple[float, float] | None = None  # of the gradient to its own primal
    hand: tuple[float, float] | None = None  # of the gradient to that by hand
    prepare: float | None = None
    compile: float | None = None
    source_bytes: int | None = None
    stack: int | None = None
    note: str = ""


def make(walk: Walk, contender: Contender, folder: Path) -> Contender:
    text = LOOP.format(declaration=contender.declaration, call=contender.call, stride=stride_of(walk))
    return compiled(contender, text, folder / contender.name.replace(" ", "-"))


def passes(walk: Walk, contender: Contender, points: Sequence[tuple[Any, ...]], folder: Path) -> Passes:
    return Passes(make(walk, contender, folder).library, walk, points, "gradient" in contender.name)


def check(walk: Walk, points: Sequence[tuple[Any, ...]], entries: dict[str, Passes]) -> dict[str, float]:
    """The largest error of each gradient; of the others' at all points, of all at the first ones."""
    errors = dict.fromkeys(entries, 0.0)
    found = {name: entry.results() for name, entry in entries.items()}
    first = next(iter(found.values()))
    for k, point in enumerate(points[:CHECKED]):
        expected = reference(walk, point)
        for name, values in found.items():
            errors[name] = max(errors[name], error(values[k], expected))
    for name, values in found.items():
        for k in range(len(points)):
            errors[name] = max(errors[name], error(values[k], first[k]))
    return errors


def native_race(
    walk: Walk, points: Sequence[tuple[Any, ...]], rounds: int, budget: float, folder: Path
) -> tuple[list[Found], dict[str, str]]:
    """By hand and by hyad, by turns; and the shared objects of what is by hand, for the peers."""
    made = {
        "hand": make(walk, by_hand(walk, False), folder),
        "hand gradient": make(walk, by_hand(walk, True), folder),
        "hyad": make(walk, by_hyad(walk, False), folder),
        "hyad gradient": make(walk, by_hyad(walk, True), folder),
    }
    entries = {name: Passes(c.library, walk, points, "gradient" in name) for name, c in made.items()}
    values, by_hyads = entries["hand"].results(), entries["hyad"].results()
    if not np.allclose(values, by_hyads, rtol=1e-12, atol=0):
        raise RuntimeError(f"{walk.name}: hyad's values are not those by hand")
    errors = check(walk, points, {name: entries[name] for name in ("hand gradient", "hyad gradient")})
    if errors["hand gradient"] > GATE:
        raise RuntimeError(f"{walk.name}: the gradient by hand is wrong by {errors['hand gradient']:.1e}")
    timings = alternate(entries, rounds, budget)
    rows = []
    for name in ("hand", "hyad"):
        c = made[f"{name} gradient"]
        row = measured(name, timings[name], timings[f"{name} gradient"], timings["hand gradient"], len(points))
        if errors[f"{name} gradient"] > GATE:
            row = Found(name, note=f"wrong: relative error {errors[f'{name} gradient']:.1e}")
        elif name == "hyad":
            row.prepare, row.compile, row.source_bytes = c.prepare, c.compile, len(c.source)
        rows.append(row)
    return rows, {name: made[name].library for name in ("hand", "hand gradient")}


def measured(name: str, primal: Timing, gradient: Timing, hand: Timing, points: int) -> Found:
    nanoseconds = primal.nanoseconds / points, gradient.nanoseconds / points
    return Found(name, *nanoseconds, gradient.over(primal), gradient.over(hand))


def points_of(walk: Walk, trees: list[Any]) -> list[tuple[Any, ...]]:
    return walk.points(trees, np.random.default_rng(1))


# ------------------------------------------------------------------------------------------- the encodings

STRAIGHT = Walk(
    "expr30",
    "thirty scalar operations, a straight line",
    tuple((name, "real", True) for name in "xyzw"),
    expr30,
    lambda trees, rng: [tuple(rng.uniform(0.5, 1.5, 4)) for _ in range(64)],
    2.5,
)
ENCODED = [*(w for w in WALKS if w.name in ("treelstm", "treernn", "power", "growth")), STRAIGHT]


def encodings_race(
    walk: Walk, points: Sequence[tuple[Any, ...]], rounds: int, budget: float, folder: Path
) -> list[Found]:
    """hyad's gradient in each encoding, by turns with its primal."""
    from hyad.program.values import ENCODINGS

    made = {"hyad": make(walk, by_hyad(walk, False), folder)}
    made.update((e, make(walk, by_hyad(walk, True, e), folder)) for e in ENCODINGS)
    entries = {name: Passes(c.library, walk, points, name != "hyad") for name, c in made.items()}
    errors = check(walk, points, {e: entries[e] for e in ENCODINGS})
    timings = alternate(entries, rounds, budget)
    rows = []
    for name, c in made.items():
        if errors.get(name, 0.0) > GATE:
            rows.append(Found(name, note=f"wrong: relative error {errors[name]:.1e}"))
            continue
        row = measured(name, timings["hyad"], timings[name], timings["record"], len(points))
        row.stack, row.source_bytes = entries[name].stack(), len(c.source)
        rows.append(row)
    return rows
