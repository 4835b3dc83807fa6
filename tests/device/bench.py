"""How fast the kernels are, on one GPU: against what the card was measured to do in the same run, and against peers.

    python tests/device/bench.py [--seconds 400] [--output FILE] [--quick]

Ceilings: a copy in device memory (bytes read and written), and chains of fused multiply-adds, of which one counts as
two operations. A case's arrays are on the GPU before and after; times are by CUDA's events, the least of the rounds.
Each derivative is checked against C on a part of its input before it is timed. ``bytes`` are those that must move: each
input read once, each result written once. ``operations`` are counted in hyad's own program (``hyad.cost``): each one on
reals once, weighed in additions. JAX and PyTorch (compiled, where it compiles) differentiate the same models, where
they are installed. What does not fit into the time is left out, and said.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import hyad
from hyad import device, gpu
from hyad.marshalling import take_apart
from hyad.program.counts import cost

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench"
sys.path.insert(0, str(BENCH))

FMA = """
extern "C" __global__ void fma_chain({real} *out, long long n)
{{
    {real} a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
    const {real} x = ({real})0.999, y = ({real})0.001;
    for (long long k = 0; k < n; k++) {{
        a = a*x + y; b = b*x + y; c = c*x + y; d = d*x + y;
        e = e*x + y; f = f*x + y; g = g*x + y; h = h*x + y;
    }}
    out[(long long)blockIdx.x*blockDim.x + threadIdx.x] = a + b + c + d + e + f + g + h;
}}
"""


@dataclass
class Case:
    """A model and its derivative. ``args`` makes the arguments for a size; ``bound`` is "bytes", "f64" or "f32", what
    should hold it up; ``part`` cuts the arguments down for the check against C; ``peers`` compute the same derivative
    in JAX and PyTorch, by name: from the arguments, what to call."""

    name: str
    primal: Callable[[], Any] | None
    derivative: Callable[[], Any]
    args: Callable[[int], list[Any]]
    size: int
    bound: str
    part: Callable[[list[Any]], list[Any]]
    small: int = 64
    dtype: str = "f64"
    batched: bool = False
    peers: dict[str, Callable[[list[Any]], Callable[[], Any]]] = field(default_factory=dict)


@dataclass
class Row:
    name: str
    size: int
    seconds: float = 0.0
    bytes: float = 0.0
    work: float = 0.0
    ratio: float | None = None
    wall: float = 0.0
    host: float = 0.0
    bound: str = ""
    peers: dict[str, float] = field(default_factory=dict)
    note: str = ""


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def problem(name: str) -> Any:
    return getattr(hyad.load(BENCH / "problems" / f"{name}.hy"), name)


# -------------------------------------------------------------------------------------------- cases

SINE = "(defmodel energy [#^ (Vec n) v] (fold + 0.0 (map (fn [x] (* x x (exp (- x)))) v)))"
PRODUCT = "(defmodel product [#^ (Mat n k) a #^ (Mat k m) b] (mat-mul a b))"


def wave() -> Any:
    return hyad.model("(defmodel wave [#^ (Vec n) v] (map (fn [x] (* x (- 3.0 (* x x)))) v))", namespace={})


def wave_and_slope() -> Any:
    text = (
        "(defmodel wave-and-slope [#^ (Vec n) v] (let [f (fn [x] (* x (- 3.0 (* x x))))] #((map f v) (map (D f) v))))"
    )
    return hyad.model(text, namespace={})


def energy() -> Any:
    return hyad.model(SINE, namespace={})


def product() -> Any:
    return hyad.model(PRODUCT, namespace={})


def system() -> Any:
    return hyad.model("(defmodel system [#^ (Mat n n) a #^ (Vec n) b] (solve a b))", namespace={})


def equations(n: int) -> list[Any]:
    r = rng()
    return [r.normal(size=(n, n)) + n * np.eye(n), r.normal(size=n)]


def gmm_args(n: int) -> list[Any]:
    d, k = 10, 25
    r = rng()
    parts = [r.normal(size=k), r.uniform(size=(k, d)), r.normal(size=(k, d * (d + 1) // 2)) / 4]
    return [*parts, r.normal(size=(n, d)), 1.0, 0.0]


def declared_gmm() -> Any:
    """The mixture with the sizes of its components declared."""
    text = (BENCH / "problems" / "gmm.hy").read_text()
    for was, now in (("(Vec k) a", "(Vec 25) a"), ("(Mat k d)", "(Mat 25 10)"), ("(Mat k p)", "(Mat 25 55)")):
        text = text.replace(was, now)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "declared.hy").write_text(text.replace("(Mat n d) x", "(Mat n 10) x"))
        return hyad.load(Path(folder, "declared.hy")).gmm


def heston_args(chunks: int) -> list[Any]:
    theta = np.array([100.0, 0.04, 2.0, 0.04, 0.3, -0.7, 1.0])
    return [theta, np.linspace(80.0, 120.0, 8), 0.03, 1.0, 100, 0, 8, chunks]


def heston() -> Any:
    import hy  # noqa: F401  (lets Python import Hy files)

    sys.path.insert(0, str(ROOT / "examples"))
    import heston as found

    return found


def rows(n: int, dtype: str = "f64") -> list[Any]:
    r, real = rng(), np.float64 if dtype == "f64" else np.float32
    return [r.uniform(0.5, 2.0, (n, 15)).astype(real), r.uniform(0.5, 2.0, (n, 2)).astype(real)]


def bundle(m: int, in_order: bool = False) -> list[Any]:
    """A bundle adjustment of so many observations, of points that are seen ten times each: in any order, or theirs."""
    r, c, n = rng(), max(m // 1000, 1), max(m // 10, 1)
    parts = [r.uniform(0.5, 1.5, s) for s in ((c, 11), (n, 3), m, (m, 2))]
    points = r.integers(0, n, m)
    return [*parts, r.integers(0, c, m), np.sort(points) if in_order else points]


def bundle_part(args: list[Any]) -> list[Any]:
    """All cameras and points, and some of the observations."""
    return [*args[:2], *(a[:50] for a in args[2:])]


def blocks() -> Any:
    return hyad.load(BENCH / "problems" / "bundle.hy").bundle_blocks


def path_args(n: int) -> list[Any]:
    return [rng().uniform(0.5, 1.5, (n, 3)), 64]


def paths() -> Any:
    text = """(defmodel paths [#^ (Mat n 3) x #^ Int m]
      (sum (map (fn [p] (ifold (fn [s k] (+ (* 0.9 (sin s)) (* (get p 1) (get p 2)))) (get p 0) m)) x)))"""
    return hyad.model(text, namespace={})


def written(text: str) -> Callable[[], Any]:
    return lambda: hyad.model(f"(defmodel {text})", namespace={})


TABLE = "table [#^ (Mat v d) e #^ (Arr Int n) at #^ (Mat n d) w] (sum (* w (tanh (gather e at))))"
SUMS = "sums [#^ (Vec k) w #^ (Arr Int n) at #^ (Vec n) x] (scatter-add w at x)"
CENTRED = "centred [#^ (Mat n m) a #^ (Mat n m) w] (sum (* w (tanh (- a (mean a 0)))))"


def table_args(n: int) -> list[Any]:
    r = rng()
    return [r.normal(size=(50_000, 64)), r.integers(0, 50_000, n), r.normal(size=(n, 64))]


def cases() -> list[Case]:
    from peers_gpu import PEERS

    def first(n: int) -> Callable[[list[Any]], list[Any]]:
        return lambda args: [a[:n] if isinstance(a, np.ndarray) else a for a in args]

    found = [
        Case("elementwise value and derivative", wave, wave_and_slope, lambda n: [rng().normal(size=n)], 1 << 26,
             "bytes", first(1000)),
        Case("sum of x^2 exp(-x) and its gradient", energy, lambda: hyad.value_and_grad(energy()),
             lambda n: [rng().uniform(size=n)], 1 << 26, "bytes", first(1000)),
        Case("bundle adjustment's Jacobian, f64", lambda: problem("ba"),
             lambda: hyad.jacobian(problem("ba"), wrt="p"), rows, 1 << 21, "bytes", first(100), batched=True),
        Case("bundle adjustment's Jacobian, f32", lambda: problem("ba"),
             lambda: hyad.jacobian(problem("ba"), wrt="p"), lambda n: rows(n, "f32"), 1 << 21, "bytes", first(100),
             dtype="f32", batched=True),
        Case("bundle adjustment's blocks, in any order", None, blocks, bundle, 1 << 20, "bytes", bundle_part),
        Case("bundle adjustment's blocks, in any order, each thread its rows", None,
             lambda: blocks().without(("staging",)), bundle, 1 << 20, "bytes", bundle_part),
        Case("bundle adjustment's blocks, in the order of points", None, blocks, lambda n: bundle(n, True), 1 << 20,
             "bytes", bundle_part),
        Case("gradient of 64 steps, remembered", paths, lambda: hyad.grad(paths(), wrt="x"), path_args, 1 << 18, "f64",
             first(1000)),
        Case("gradient of 64 steps, remembered in one piece by each thread", paths,
             lambda: hyad.grad(paths(), wrt="x").without(("striding",)), path_args, 1 << 18, "f64", first(1000)),
        Case("Gaussian mixture's gradient", lambda: problem("gmm"),
             lambda: hyad.grad(problem("gmm"), wrt=(0, 1, 2)), gmm_args, 100_000, "f64",
             lambda a: [*a[:3], a[3][:50], *a[4:]]),
        Case("Gaussian mixture's gradient, declared sizes", declared_gmm,
             lambda: hyad.grad(declared_gmm(), wrt=(0, 1, 2)), gmm_args, 100_000, "f64",
             lambda a: [*a[:3], a[3][:50], *a[4:]]),
        Case("product of matrices", None, product, lambda n: [rng().normal(size=(n, n)) for _ in range(2)], 4096, "f64",
             lambda a: [x[:40, :40].copy() for x in a]),
        Case("system of 128 equations", None, system, equations, 128, "f64", lambda a: a),
        Case("system of 1024 equations", None, system, equations, 1024, "f64", lambda a: a),
        Case("Heston's sensitivities, 8 paths of 100 steps", None, lambda: heston().sensitivities, heston_args, 1 << 18,
             "f64", lambda a: [*a[:4], 5, *a[5:7], 4], small=3),
        Case("transposed matrix", None, written("turned [#^ (Mat n m) a] (transpose a)"),
             lambda n: [rng().normal(size=(n, n))], 8192, "bytes", lambda a: [a[0][:40, :37].copy()]),
        Case("softmax of rows of 100,000", None, written("rows [#^ (Mat n m) a] (map softmax a)"),
             lambda n: [rng().normal(size=(n, 100_000))], 512, "bytes", lambda a: [a[0][:2].copy()], small=3),
        Case("gradient of a table's rows, looked up", written(TABLE), lambda: hyad.grad(written(TABLE)(), wrt="e"),
             table_args, 1 << 19, "bytes", lambda a: [a[0], *(x[:50] for x in a[1:])]),
        Case("sums at 256 places", None, written(SUMS),
             lambda n: [np.zeros(256), rng().integers(0, 256, n), rng().normal(size=n)], 1 << 26, "bytes",
             lambda a: [a[0], *(x[:1000] for x in a[1:])]),
        Case("gradient through the means of columns", written(CENTRED), lambda: hyad.grad(written(CENTRED)(), wrt="a"),
             lambda n: list(rng().normal(size=(2, n, 512))), 1 << 16, "bytes", lambda a: [x[:50] for x in a]),
    ]  # fmt: skip
    for case in found:
        case.peers = PEERS.get(case.name, {})
    return found


# -------------------------------------------------------------------------------------------- timing


def events() -> Any:
    import pycuda.driver

    return pycuda.driver


def timed(call: Callable[[], Any], limit: float = 0.5, rounds: int = 20) -> float:
    """Seconds of one call on the GPU: the least of some rounds, after two that are not counted. Before each the GPU is
    kept busy for as long as the host needs to start the call, by clearing memory larger than its cache: what a call
    reads is not there yet, and what Python does meanwhile is not counted (``host_time`` counts it)."""
    driver, wide = events(), cleared()
    for _ in range(2):
        call()
    driver.Context.synchronize()
    best, started = float("inf"), time.perf_counter()
    for _ in range(rounds):
        begin, end = driver.Event(), driver.Event()
        driver.memset_d8_async(int(wide[0]), 0, wide[1], None)
        begin.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, end.time_since(begin) * 1e-3)
        if time.perf_counter() - started > limit:
            break
    return best


@cache
def cleared() -> tuple[Any, int]:
    """Memory to be cleared between calls, several times the cache, and its bytes: a stand-in has little."""
    driver = events()
    nbytes = min(1 << 30, driver.mem_get_info()[0] // 64)
    return driver.mem_alloc(nbytes), nbytes


def host_time(call: Callable[[], Any], rounds: int = 20) -> float:
    """Seconds that the host needs for one call of which the GPU's part is short."""
    driver, best = events(), float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
        driver.Context.synchronize()
    return best


def copy_bandwidth(nbytes: int) -> float:
    """Bytes read and written in a second by a copy in device memory."""
    driver = events()
    a, b = driver.mem_alloc(nbytes), driver.mem_alloc(nbytes)
    return 2 * nbytes / timed(lambda: driver.memcpy_dtod_async(int(b), int(a), nbytes, None))


def fma_rate(dtype: str, steps: int) -> float:
    """Operations in a second, two for a fused multiply-add."""
    place = device.current()
    blocks, threads = place.attribute("MULTIPROCESSOR_COUNT") * 16, 256
    real = "double" if dtype == "f64" else "float"
    with place.call("fma") as call:
        function = place.function(FMA.format(real=real), "fma_chain", "Pq", "fma")
        out = call.memory(blocks * threads * 8)
        return (
            blocks
            * threads
            * steps
            * 16
            / timed(lambda: call.launch(function, (blocks, 1), (threads, 1, 1), [out.pointer, steps]))
        )


# ------------------------------------------------------------------------------------------- one case


def flat(tree: Any, value: Any) -> list[Any]:
    out: list[Any] = []
    take_apart(tree, value, out)
    return out


def moved(a: Any) -> Any:
    """An array of the host's on the GPU."""
    from pycuda.gpuarray import to_gpu

    return to_gpu(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else a


def size_in_bytes(values: Sequence[Any]) -> int:
    return sum(a.nbytes for a in values if hasattr(a, "nbytes"))


def check(case: Case, f: Any, compiled: gpu.CudaModel) -> None:
    """A part of the input, against C."""
    args = case.part(case.args(case.small))
    one = [a[0] for a in args] if case.batched else args
    entry = hyad.compile(f, args=one, dtype=case.dtype)
    got = flat(compiled.program.out, compiled(*args))
    tolerance = 1e-9 if case.dtype == "f64" else 2e-3
    for k in range(len(args[0]) if case.batched else 1):
        at = [a[k] for a in args] if case.batched else args
        for a, b in zip(got, flat(entry.program.out, entry(*at))):
            a, b = np.asarray(a[k] if case.batched else a, float), np.asarray(b, float)
            worst = np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(b), initial=0.0), 1e-300)
            if not worst <= tolerance:
                raise AssertionError(f"{case.name}: off by {worst:.1e}")


def operations(program: Any, args: Sequence[Any]) -> float:
    """Of one call, in additions."""
    known = {}
    for p, a in zip(program.params, args):
        for d, n in zip(getattr(p.type, "dims", ()), np.shape(a)):
            known.setdefault(d, float(n))
        if isinstance(a, int):
            known[p] = float(a)
    return cost(program, known).work


def measured(case: Case, size: int) -> Row:
    """A case's row, but for its peers."""
    row = Row(case.name, size, bound=case.bound)
    args = case.args(size)
    one = [a[0] for a in args] if case.batched else args
    f = case.derivative()
    compiled = hyad.compile(f, "cuda", args=one, dtype=case.dtype)
    check(case, f, compiled)
    there = [moved(a) for a in args]
    results = flat(compiled.program.out, compiled(*there))
    row.bytes = size_in_bytes(args) + size_in_bytes(results)
    row.work = operations(compiled.program, one) * (size if case.batched else 1)
    del results
    row.seconds = timed(lambda: compiled(*there))
    row.wall = wall(lambda: (compiled(*there), events().Context.synchronize()))
    few = [moved(a) for a in case.part(case.args(case.small))]
    compiled(*few)
    row.host = host_time(lambda: compiled(*few))
    if case.primal is not None:
        primal = hyad.compile(case.primal(), "cuda", args=one, dtype=case.dtype)
        row.ratio = row.seconds / timed(lambda: primal(*there))
    return row


def compare(row: Row, case: Case, until: float) -> None:
    """Time a case's peers, and begin none later than ``until``."""
    args = case.args(row.size)
    for name, peer in case.peers.items():
        if time.perf_counter() > until:
            row.note += f" {name}: no time."
            continue
        try:
            row.peers[name] = wall(peer(args))
        except Exception as e:  # whatever another library says
            row.note += f" {name}: {type(e).__name__}."


def wall(call: Callable[[], Any], limit: float = 1.0, rounds: int = 10) -> float:
    """Seconds of a call that returns when its result is there: the least of some rounds."""
    for _ in range(2):
        call()
    best, started = float("inf"), time.perf_counter()
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
        if time.perf_counter() - started > limit:
            break
    return best


# ---------------------------------------------------------------------------------------------- table


def table(rows: Sequence[Row], ceilings: dict[str, float], card: str) -> str:
    """Markdown: the ceilings, then a row for each case."""
    day = datetime.date.today().isoformat()
    out = [
        "# On a GPU",
        "",
        f"{card}, {day}. Written by `tests/device/run.sh`; `tests/device/bench.py` says what is measured.",
        "",
    ]
    out.append(
        f"Ceilings of this card, in this run: a copy in its memory {ceilings['bytes'] / 1e9:.0f} GB/s read and written;"
        f" fused multiply-adds {ceilings['f64'] / 1e9:.0f} GFLOP/s in f64, {ceilings['f32'] / 1e9:.0f} in f32."
    )
    names = sorted({name for row in rows for name in row.peers})
    head = ["case", "size", "ms", "GB/s", "of the copy", "Gop/s", "of the FMA rate", "to its primal"]
    head += ["host, us", *names]
    out += [
        "",
        "| " + " | ".join(head) + " |",
        "|" + "|".join("---" if k == 0 else "---:" for k in range(len(head))) + "|",
    ]
    for row in rows:
        if not row.seconds:
            out.append(f"| {row.name} | {row.note} |" + " |" * (len(head) - 2))
            continue
        rate, work = row.bytes / row.seconds, row.work / row.seconds
        real = "f32" if row.name.endswith("f32") else "f64"
        cells = [row.name, f"{row.size}", f"{1e3 * row.seconds:.3f}", f"{rate / 1e9:.0f}"]
        cells += [mark(rate / ceilings["bytes"], row.bound == "bytes"), f"{work / 1e9:.0f}"]
        cells += [mark(work / ceilings[real], row.bound != "bytes"), f"{row.ratio:.2f}" if row.ratio else ""]
        cells.append(f"{1e6 * row.host:.0f}")
        cells += [f"{row.peers[n] / row.wall:.2f}x" if n in row.peers else "" for n in names]
        out.append("| " + " | ".join(cells) + " |")
    out += [
        "",
        "A peer's column has its time over hyad's, by the clock of the host, from the call until its result is there.",
    ]
    out += ["`host` is what a call on little data takes the host. What holds a case up stands in bold."]
    notes = [f"{row.name}:{row.note}" for row in rows if row.note and row.seconds]
    return "\n".join([*out, *([""] if notes else []), *notes, ""])


def mark(share: float, holds: bool) -> str:
    text = f"{100 * share:.0f}%"
    return f"**{text}**" if holds else text


def card() -> str:
    place, version = device.current().place, events().get_driver_version()
    return f"{place.name()}, CUDA {version // 1000}.{version % 1000 // 10}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=400.0, help="when no further case is begun")
    parser.add_argument("--output", help="a file for the table")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, no peers: whether it runs at all")
    given = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        import pycuda.autoprimaryctx  # noqa: F401  (the context that PyTorch and JAX use too)

        device.driver()
    except Exception as e:  # whatever it is: there is nothing to measure
        print(f"no GPU can be used here: {e}", file=sys.stderr)
        return 2
    sizes = (1 << 12, 10) if given.quick else (1 << 30, 20_000)
    ceilings = {"bytes": copy_bandwidth(sizes[0]), "f64": fma_rate("f64", sizes[1]), "f32": fma_rate("f32", sizes[1])}
    found, failed = [], 0
    for case in cases():
        if time.perf_counter() - started > given.seconds:
            found.append(Row(case.name, 0, note="left out: no time"))
            continue
        began = time.perf_counter()
        try:
            found.append(measured(case, case.small if given.quick else case.size))
        except Exception as e:
            failed += 1
            import traceback

            traceback.print_exc()
            found.append(Row(case.name, 0, note=f"failed: {type(e).__name__}"))
        print(f"{case.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    write = Path(given.output).write_text if given.output else str
    write(table(found, ceilings, card()))
    for row, case in zip(found, cases()):  # last, for they may compile for long, and fail in ways of their own
        if row.seconds and not given.quick:
            compare(row, case, started + given.seconds)
    text = table(found, ceilings, card())
    write(text)
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
