"""One CUDA kernel: a piece of a typed program, run by one thread or by a whole grid.

A ``KernelPrinter`` prints what the C printer would print for the piece, but for three things. The loops of ``grid``, a
nest, become one loop in which each thread of the grid takes its share, neighbours side by side. Additions to arrays
that several threads may add to are atomic. The sums of such a loop are each thread's own; a block adds them up by
shuffles, and its first thread writes the sum to the block's place of an array of parts.

Where there are loops of ``rows``, a *team* of threads has each place of the grid: in each of these loops neighbours
read neighbours in the row, and fold what they have by shuffles. All of them have the result, and one stores what is
made of it. What such loops make of a row's elements, for others of them to read, lies in shared memory where it fits.
How many threads a team has is a parameter: a power of two up to a warp, or a block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hyad.core import BOOL, INT, REAL, Arr, Bind, Const, Loop, Prim, Program, Scalar, Var
from hyad.spread import Reduction, reductions

from .comments import Comments
from .cuda import CudaPrinter
from .expressions import PRIMARY, SHIFT, WIDTH, Expr, plus, wrapped
from .lower import LOCAL_REALS, Buffer, Plan, is_array, plan, type_of
from .operands import Line

QUOTIENT = """\
/* a/b of indices; in 32 bits, where that is enough, it is several times as fast */
static __device__ inline long long hyad_quotient(long long a, long long b) {
  if (b <= 0) return 9223372036854775807LL;
  return ((a | b) >> 32) == 0 ? (long long)((unsigned)a/(unsigned)b) : a/b;
}
"""
FAIL = """\
/* notes that a check failed: the first one is told */
static __device__ inline void hyad_fail(unsigned long long *status, int number) {
  atomicCAS(status, 0ULL, (unsigned long long)number);
}
"""
ADD_AT = """\
static __device__ inline void hyad_add(long long *to, long long x) {
  atomicAdd((unsigned long long *)to, (unsigned long long)x);
}
static __device__ inline void hyad_add(double *to, double x) { atomicAdd(to, x); }
static __device__ inline void hyad_add(float *to, float x) { atomicAdd(to, x); }
"""
WARP = "0xffffffffu"

#: A product of matrices: a block makes 64 x 64 elements of it, each thread 4 x 4 of them, 16 apart. Where there are few
#: such tiles and many terms, several blocks have some of the terms each; the last of them adds up what they made.
PRODUCT = """\
/* c = a b, or c += a b; m x n, with k terms in each sum; ta and tb: of the transposes of a and b; for `many` of each,
   sa, sb and sc apart. Where there are few tiles each is made in parts, of some of the terms; `done`, zero before and
   after, counts those that are there */
extern "C" __global__ void __launch_bounds__(256) NAME(const REAL *__restrict__ a, long long lda, long long ta,
    const REAL *__restrict__ b, long long ldb, long long tb, REAL *__restrict__ c, long long ldc,
    long long m, long long n, long long k, long long add,
    long long many, long long sa, long long sb, long long sc, volatile REAL *part, int *done)
{
    __shared__ REAL as[16][65], bs[16][65]; /* by terms; one more: neighbours in a column lie in different banks */
    __shared__ int last;
    const int x = threadIdx.x & 15, y = threadIdx.x >> 4, far = threadIdx.x & 63, near = threadIdx.x >> 6;
    const long long across = (n + 63)/64, each = across*((m + 63)/64), tiles = many*each;
    const long long wanted = tiles > 0 ? MOST/tiles : 1, worth = k/512, most = wanted < worth ? wanted : worth;
    const long long parts = most > 1 ? most : 1, terms = ((k + 15)/16 + parts - 1)/parts*16;
    for (long long at = blockIdx.x; at < tiles*parts; at += gridDim.x) {
        const long long tile = at/parts, first = at%parts*terms, end = first + terms < k ? first + terms : k;
        const long long i0 = tile%each/across*64, j0 = tile%each%across*64;
        const REAL *a1 = a + tile/each*sa, *b1 = b + tile/each*sb;
        REAL *c1 = c + tile/each*sc;
        REAL s[4][4] = {};
        for (long long k0 = first; k0 < end; k0 += 16) {
            for (int r = 0; r < 4; r++) { /* what neighbours load are neighbours in memory */
                int i = ta ? far : y + 16*r, l = ta ? near + 4*r : x;
                as[l][i] = i0 + i < m && k0 + l < k ? a1[ta ? (k0 + l)*lda + i0 + i : (i0 + i)*lda + k0 + l] : 0;
                i = tb ? y + 16*r : far, l = tb ? x : near + 4*r;
                bs[l][i] = j0 + i < n && k0 + l < k ? b1[tb ? (j0 + i)*ldb + k0 + l : (k0 + l)*ldb + j0 + i] : 0;
            }
            __syncthreads();
            #ifdef __CUDACC__
            #pragma unroll
            #endif
            for (int l = 0; l < 16; l++) {
                REAL u[4], v[4];
                for (int q = 0; q < 4; q++) {
                    u[q] = as[l][y + 16*q];
                    v[q] = bs[l][x + 16*q];
                }
                for (int q = 0; q < 4; q++)
                    for (int r = 0; r < 4; r++)
                        s[q][r] += u[q]*v[r];
            }
            __syncthreads();
        }
        if (parts > 1) {
            for (int q = 0; q < 16; q++)
                part[(at*16 + q)*256 + threadIdx.x] = s[q/4][q%4];
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0)
                last = atomicInc((unsigned *)&done[tile], (unsigned)parts - 1) == (unsigned)parts - 1;
            __syncthreads();
            if (!last)
                continue;
            __threadfence();
            for (int q = 0; q < 16; q++) {
                s[q/4][q%4] = 0;
                for (long long p = 0; p < parts; p++) /* always in this order */
                    s[q/4][q%4] += part[((tile*parts + p)*16 + q)*256 + threadIdx.x];
            }
        }
        for (int q = 0; q < 4; q++) {
            for (int r = 0; r < 4; r++) {
                const long long i = i0 + y + 16*q, j = j0 + x + 16*r;
                if (i < m && j < n)
                    c1[i*ldc + j] = add ? c1[i*ldc + j] + s[q][r] : s[q][r];
            }
        }
    }
}
"""
HELD = 4096  # numbers of rows in the shared memory of a block: so many blocks fit that nothing is lost by it
TILE = 64
MOST = 264  # tiles that keep a device busy: two for each processor

#: How two partial values become one, and what a thread starts with.
COMBINED = {
    "sum": ("{0} + {1}", {"real": "0", "int": "0"}),
    "product": ("{0}*{1}", {"real": "1", "int": "1"}),
    "max": ("{0} >= {1}{nan} ? {0} : {1}", {"real": "-INFINITY", "int": "(-9223372036854775807LL - 1)"}),
    "min": ("{0} <= {1}{nan} ? {0} : {1}", {"real": "INFINITY", "int": "9223372036854775807LL"}),
    "and": ("{0} && {1}", {"bool": "1"}),
    "or": ("{0} || {1}", {"bool": "0"}),
}


def combined(kind: str, elem: str, x: str, y: str) -> str:
    """``x`` and ``y`` as one; a NaN stays."""
    return COMBINED[kind][0].format(x, y, nan=f" || {x} != {x}" if elem == "real" else "")


ELEM = {REAL: "real", INT: "int", BOOL: "bool"}


def block_reduction(kind: str, ctype: str, elem: str) -> tuple[str, str]:
    """The name and the text of the function that folds a value of each thread of a block; its first thread has the
    result. Every thread must call it; a block is whole warps."""
    starts = COMBINED[kind][1]
    name = f"hyad_block_{kind}_{ctype.replace('long long', 'int')}"
    x = combined(kind, elem, "x", "y")
    lines = [
        f"/* the {kind} of a block's values of x, for its first thread */",
        f"static __device__ inline {ctype} {name}({ctype} x) {{",
        f"  __shared__ {ctype} of_warp[32];",
        "  const unsigned lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;",
        "  for (unsigned k = 16; k > 0; k >>= 1) {",
        f"    const {ctype} y = __shfl_down_sync({WARP}, x, k);",
        f"    x = {x};",
        "  }",
        "  if (lane == 0) of_warp[warp] = x;",
        "  __syncthreads();",
        "  if (warp == 0) {",
        f"    x = lane < blockDim.x >> 5 ? of_warp[lane] : ({ctype}){starts[elem]};",
        "    for (unsigned k = 16; k > 0; k >>= 1) {",
        f"      const {ctype} y = __shfl_down_sync({WARP}, x, k);",
        f"      x = {x};",
        "    }",
        "  }",
        "  __syncthreads();",
        "  return x;",
        "}",
        "",
    ]
    return name, "\n".join(lines)


def block_place(ctype: str, least: bool, last: bool) -> tuple[str, str]:
    """As ``block_reduction``, of the largest or smallest value and where it is: ``*at`` becomes the place."""
    name = f"hyad_block_{'min' if least else 'max'}_place{'_last' if last else ''}_{ctype.replace('long long', 'int')}"
    better = f"y {'<' if least else '>'} x || (x == y && y_at {'>' if last else '<'} x_at)"
    step = [
        f"    const {ctype} y = __shfl_down_sync({WARP}, x, k);",
        f"    const long long y_at = __shfl_down_sync({WARP}, x_at, k);",
        f"    if ({better}) {{ x = y; x_at = y_at; }}",
    ]
    lines = [
        f"/* the {'least' if least else 'largest'} of a block's values of x and where it is, for its first thread */",
        f"static __device__ inline {ctype} {name}({ctype} x, long long *at) {{",
        f"  __shared__ {ctype} of_warp[32];",
        "  __shared__ long long place[32];",
        "  const unsigned lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;",
        "  long long x_at = *at;",
        "  for (unsigned k = 16; k > 0; k >>= 1) {",
        *step,
        "  }",
        "  if (lane == 0) { of_warp[warp] = x; place[warp] = x_at; }",
        "  __syncthreads();",
        "  if (warp == 0) {",
        "    const unsigned from = lane < blockDim.x >> 5 ? lane : 0;",
        "    x = of_warp[from];",
        "    x_at = place[from];",
        "    for (unsigned k = 16; k > 0; k >>= 1) {",
        *("  " + line for line in step),
        "    }",
        "  }",
        "  __syncthreads();",
        "  *at = x_at;",
        "  return x;",
        "}",
        "",
    ]
    return name, "\n".join(lines)


def block_scan(kind: str, ctype: str, elem: str) -> tuple[str, str]:
    """The name and the text of the function that scans a value of each thread of a block: each has what those before
    it give together, and ``*all`` becomes what all of them give. Every thread must call it; a block is whole warps.
    For "linear" the values are pairs (a, b), of ``s -> a s + b``; for "affine2" and on matrices and vectors."""
    name = f"hyad_block_scan_{kind}_{ctype.replace('long long', 'int')}"
    parts = parts_of(kind)
    starts = identities(kind, elem)

    def both(left: str, right: str) -> list[str]:
        """What is written to ``left``: it, then ``right``."""
        after = behind(kind, elem, [left.format(p) for p in parts], [right.format(p) for p in parts])
        if len(parts) == 1:
            return [f"{left.format('x')} = {after[0]};"]
        made = [f"const {ctype} {p}_next = {x};" for p, x in zip(parts, after)]
        return [*made, *(f"{left.format(p)} = {p}_next;" for p in parts)]

    pointers = ", ".join(f"{ctype} *{p}" for p in parts)
    alls = ", ".join(f"{ctype} *{p}_all" for p in parts)
    text = [
        f"/* of a block's values in the order of its threads: what comes before each, and all ({kind}) */",
        f"static __device__ inline void {name}({pointers}, {alls}) {{",
        f"  __shared__ {ctype} {', '.join(f'{p}_of_warp[32]' for p in parts)};",
        "  const unsigned lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;",
        *(f"  {ctype} {p}_up = *{p}, {p}_to = *{p}, {p}_sum = {z};" for p, z in zip(parts, starts)),
        "  for (unsigned k = 1; k < 32; k <<= 1) {",
        *(f"    {p}_up = __shfl_up_sync({WARP}, {p}_to, k);" for p in parts),
        "    if (lane >= k) {",
        *("      " + line for line in both("{0}_up", "{0}_to")),
        *(f"      {p}_to = {p}_up;" for p in parts),
        "    }",
        "  }",
        "  if (lane == 31) {",
        *(f"    {p}_of_warp[warp] = {p}_to;" for p in parts),
        "  }",
        *(f"  {p}_up = __shfl_up_sync({WARP}, {p}_to, 1);" for p in parts),
        "  if (lane == 0) {",
        *(f"    {p}_up = {z};" for p, z in zip(parts, starts)),
        "  }",
        "  __syncthreads();",
        "  for (unsigned k = 0; k < blockDim.x >> 5; k++) {",
        "    if (k == warp) {",
        *(f"      *{p} = {p}_sum;" for p in parts),
        "    }",
        *("    " + line for line in both("{0}_sum", "{0}_of_warp[k]")),
        "  }",
        *("  " + line for line in both("(*{0})", "{0}_up")),
        *(f"  *{p}_all = {p}_sum;" for p in parts),
        "  __syncthreads();",
        "}",
        "",
    ]
    return name, "\n".join(text)


TIMES = """\
/* x*y, where 0 times what has become too large on the way to it is 0 */
static __device__ inline REAL hyad_times(REAL x, REAL y) {
  return (x == 0 && y == y) || (y == 0 && x == x) ? (REAL)0 : x*y;
}
"""


def width(kind: str) -> int:
    """How many states go on together."""
    return int(kind[-1]) if kind.startswith("affine") else 1


def parts_of(kind: str) -> tuple[str, ...]:
    """Names of the parts of a value that is scanned."""
    n = range(width(kind))
    if len(n) > 1:
        return (*(f"a{i}{j}" for i in n for j in n), *(f"b{i}" for i in n))
    return ("a", "b") if kind == "linear" else ("x",)


def identities(kind: str, elem: str) -> tuple[str, ...]:
    """What changes nothing, for each part of a value that is scanned."""
    n = range(width(kind))
    if len(n) > 1:
        return (*("1" if i == j else "0" for i in n for j in n), *("0" for _ in n))
    return ("1", "0") if kind == "linear" else (COMBINED[kind][1][elem],)


def behind(kind: str, elem: str, first: Sequence[str], change: Sequence[str]) -> list[str]:
    """What a change makes of states, or of what came before it: ``first`` has the parts of either."""
    n = width(kind)
    if n == 1 and kind != "linear":
        return [scanned(kind, elem, first[0], change[0])]
    matrix, vector = change[: n * n], change[n * n :]
    *before, states = [first[k : k + n] for k in range(0, len(first), n)]  # rows of a matrix, if any, and the states

    def times(i: int, column: Sequence[str]) -> str:
        return " + ".join(f"hyad_times({matrix[i * n + k]}, {column[k]})" for k in range(n))

    made = [times(i, [row[j] for row in before]) for i in range(n) for j in range(n)] if before else []
    return [*made, *(f"{times(i, states)} + {vector[i]}" for i in range(n))]


def scanned(kind: str, elem: str, x: str, y: str) -> str:
    """``x``, then ``y``."""
    return f"hyad_times({x}, {y})" if kind == "product" and elem == "real" else combined(kind, elem, x, y)


@dataclass(frozen=True, slots=True)
class Scanned:
    """How a loop with states runs on blocks (``hyad/scans.py``). The loop's body is the terms, then the rest; its
    results for the states are the terms; where a state has two, one is the result of a further accumulator.

    ``states``: for each recurrence its kind, and the numbers of the accumulators that its terms are results of, the
    last one, or the last ones, the states'. ``before``: how many bindings make the terms. ``parts``: array
    parameters, what each block's iterations do to the states, those of all recurrences one after the other; ()
    where each block has whole loops (``rows``), or is to give these parts (``totals``)."""

    index: Var
    states: tuple[tuple[str, tuple[int, ...]], ...]
    before: int
    parts: tuple[Var, ...] = ()
    totals: bool = False
    rows: bool = False


#: The lanes of a warp that are one team, and the head of the loop in which they fold.
TEAM_MASK = (
    "  const unsigned size = team < 32 ? (unsigned)team : 32u;",
    f"  const unsigned mask = size < 32 ? ((1u << size) - 1u) << (threadIdx.x & 31u & ~(size - 1u)) : {WARP};",
    "  for (unsigned k = size >> 1; k > 0; k >>= 1) {",
)


def team_reduction(kind: str, ctype: str, elem: str) -> tuple[str, str]:
    """As ``block_reduction``, for each team of a block; every thread has the result. All teams are of one size."""
    name = f"hyad_team_{kind}_{ctype.replace('long long', 'int')}"
    x = combined(kind, elem, "x", "y")
    lines = [
        f"/* the {kind} of a team's values of x, for each of its threads: up to 32, a power of two, or the block's */",
        f"static __device__ inline {ctype} {name}({ctype} x, long long team) {{",
        f"  __shared__ {ctype} of_warp[32];",
        *TEAM_MASK,
        f"    const {ctype} y = __shfl_xor_sync(mask, x, k);",
        f"    x = {x};",
        "  }",
        "  if (team <= 32) return x;",
        "  __syncthreads(); /* of_warp has been read */",
        "  if ((threadIdx.x & 31u) == 0) of_warp[threadIdx.x >> 5] = x;",
        "  __syncthreads();",
        "  x = of_warp[0];",
        "  for (unsigned k = 1; k < blockDim.x >> 5; k++) {",
        f"    const {ctype} y = of_warp[k];",
        f"    x = {x};",
        "  }",
        "  return x;",
        "}",
        "",
    ]
    return name, "\n".join(lines)


def team_place(ctype: str, least: bool, last: bool) -> tuple[str, str]:
    """As ``block_place``, for each team of a block; every thread has the result."""
    name = f"hyad_team_{'min' if least else 'max'}_place{'_last' if last else ''}_{ctype.replace('long long', 'int')}"
    better = f"y {'<' if least else '>'} x || (x == y && y_at {'>' if last else '<'} x_at)"
    lines = [
        f"/* the {'least' if least else 'largest'} of a team's values of x and where it is, for each of its threads */",
        f"static __device__ inline {ctype} {name}({ctype} x, long long *at, long long team) {{",
        f"  __shared__ {ctype} of_warp[32];",
        "  __shared__ long long place[32];",
        "  long long x_at = *at;",
        *TEAM_MASK,
        f"    const {ctype} y = __shfl_xor_sync(mask, x, k);",
        "    const long long y_at = __shfl_xor_sync(mask, x_at, k);",
        f"    if ({better}) {{ x = y; x_at = y_at; }}",
        "  }",
        "  if (team > 32) {",
        "    __syncthreads(); /* of_warp has been read */",
        "    if ((threadIdx.x & 31u) == 0) { of_warp[threadIdx.x >> 5] = x; place[threadIdx.x >> 5] = x_at; }",
        "    __syncthreads();",
        "    for (unsigned k = 0; k < blockDim.x >> 5; k++) {",
        f"      const {ctype} y = of_warp[k];",
        "      const long long y_at = place[k];",
        f"      if ({better}) {{ x = y; x_at = y_at; }}",
        "    }",
        "  }",
        "  *at = x_at;",
        "  return x;",
        "}",
        "",
    ]
    return name, "\n".join(lines)


@dataclass(slots=True)
class Piece:
    """What a kernel computes: a program whose results it writes, and how.

    ``own``: by result, the parameter whose memory it is, changed in place. ``grid``: the indices of the nest that the
    grid runs, outermost first; () where one thread does it all. ``pointed``: the scalar parameters that lie in device
    memory. ``folds``: what the nest folds, by the variables of its final accumulators; their parts are ``parts``.
    ``totals``: parameters that are the folds of their ``parts``, before anything else is computed: (reduction,
    parameters). ``atomic``: array parameters that several threads add to. ``fallible``: whether a check stands before
    it, or in it. ``names`` are what the results are to be called. ``scan``: the loop that blocks scan. ``rows``: the
    indices of loops in the nest's body that a team of threads shares; none where each thread has a place of the grid
    to itself."""

    program: Program
    own: dict[int, int] = field(default_factory=dict)
    grid: tuple[Var, ...] = ()
    pointed: frozenset[Var] = frozenset()
    folds: list[tuple[Reduction, tuple[Var, ...]]] = field(default_factory=list)
    totals: list[tuple[Reduction, tuple[Var, ...]]] = field(default_factory=list)
    atomic: frozenset[Var] = frozenset()
    fallible: bool = False
    names: tuple[str, ...] = ()
    scan: Scanned | None = None
    rows: frozenset[Var] = frozenset()


@dataclass(frozen=True, slots=True)
class KernelText:
    """A printed kernel: its text, the functions that it calls, how many reals of workspace each thread needs (None: no
    workspace; else the terms of a size), the kinds of its parameters behind those of the piece, and which of all its
    parameters it has: those that it needs."""

    text: str
    support: tuple[str, ...]
    room: dict | None
    needs: tuple[str, ...]
    kept: tuple[bool, ...]


class KernelPrinter(CudaPrinter):
    """Prints a ``Piece``."""

    def __init__(self, piece: Piece, name: str, dtype: str, checks: list, comments: Comments | None = None) -> None:
        self.piece = piece
        self.barrier = bool(piece.folds or piece.totals)
        self.alone = True  # what is printed is not shared by the threads of a team
        self.behind = ""  # the label behind the loop that a team shares
        self.labels = 0
        super().__init__(piece.program, dtype, name)
        self.checks = checks
        self.shared_comments = comments
        self.atomic: set[Buffer] = {self.plan.place[p].buffer for p in piece.atomic}
        self.places: dict[str, str] = {}

    def planned(self, program: Program) -> Plan:
        room = -1 if self.piece.rows else 0  # a team's arrays are not each thread's
        return plan(program, own=self.piece.own, whole=self.piece.scan is not None, room=room)

    # ------------------------------------------------------------------------------------ the whole

    def print(self) -> KernelText:
        piece, program = self.piece, self.program
        self.local = {n: self.names.fresh(n) for n in ("thread", "step", "own", "work", "room", "status")}
        self.local |= {n: self.names.fresh(n) for n in ("team", "lane", "held") if piece.rows}
        self.local["done"] = self.names.fresh("done")
        head: list[str] = []
        first: list[Line] = []
        for p in program.params:
            name = self.names.fresh(p.name)
            if isinstance(p.type, Arr):
                buffer = self.plan.place[p].buffer
                self.buffer_name[buffer] = name
                const = "" if buffer.given else "const "
                head.append(f"{const}{self.ctype(p.type.elem)} *__restrict__ {name}")
            elif p in piece.pointed:
                head.append(f"const {self.ctype(p.type)} *__restrict__ {name}")
                self.value[p] = Expr(f"*{name}")
            else:
                head.append(f"{self.ctype(p.type)} {name}")
                self.value[p] = Expr(name)
        for d in program.dims:
            if d not in self.value:
                name = self.names.fresh(d.name)
                self.value[d] = Expr(name)
                head.append(f"long long {name}")
        needs: list[str] = []
        results: dict[int, str] = {}
        folded = {v for _, vs in piece.folds for v in vs}
        for k, r in enumerate(program.body.results):
            if k in piece.own:
                continue
            if is_array(r):
                target = self.plan.results[k]
                results[k] = self.buffer_name[target] = self.names.fresh(piece.names[k])
                head.append(f"{self.ctype(r.type.elem)} *__restrict__ {results[k]}")
            else:
                results[k] = self.names.fresh(piece.names[k])
                head.append(f"{self.ctype(type_of(r))} *__restrict__ {results[k]}")
        for p in program.params:  # scalars in memory are read once
            if p in piece.pointed and not any(p in vs for _, vs in piece.totals):
                name = self.names.fresh(p.name)
                first.append(Line(1, f"const {self.ctype(p.type)} {name} = {self.value[p].text};"))
                self.value[p] = Expr(name)
        self.offsets, total = self.layout()
        room: dict | None = None
        static = total.isdigit() and int(total) <= LOCAL_REALS and not piece.rows
        real = self.ctype(REAL)
        if self.plan.pools and static:
            first.append(Line(1, f"{'alignas(8) ' if self.mixed() else ''}{real} {self.local['own']}[{total}];"))
        elif self.plan.pools:
            room = self.room()
            head += [f"{real} *__restrict__ {self.local['work']}", f"long long {self.local['room']}"]
            needs.append("work")
            if piece.rows:
                first += self.held(real)
            else:
                place = f"{self.local['work']} + {self.local['thread']}*{self.local['room']}"
                first.append(Line(1, f"{real} *{self.local['own']} = {place};"))
        if piece.rows:
            head.append(f"long long {self.local['team']}")
            needs.append("team")
        if piece.fallible:
            head.append(f"unsigned long long *{self.local['status']}")
            needs.append("status")
        self.start_totals(first)
        finals: list[Line] = []
        self.prepare_folds(first)
        self.statements(program.body, {})
        for k, r in enumerate(program.body.results):
            if is_array(r) or r in folded:
                continue
            text = f"*{results[k]} = {self.operand(r).text};"
            if piece.scan is not None:
                text = self.once(text[1:] if piece.scan.totals else text, results[k])
            finals.append(Line(self.depth, text, self.made.get(r)))
        self.flush_all()
        self.move(program.body)
        body = self.shown(self.lines) + finals
        return self.assembled(head, first, body, results, room, needs)

    def assembled(
        self,
        head: list[str],
        first: list[Line],
        body: list[Line],
        results: dict[int, str],
        room: dict | None,
        needs: list[str],
    ) -> KernelText:
        piece = self.piece
        lines: list[Line] = []
        thread, step = self.local["thread"], self.local["step"]
        each, every = "(long long)blockIdx.x*blockDim.x + threadIdx.x", "(long long)gridDim.x*blockDim.x"
        if piece.rows:
            team, lane = self.local["team"], self.local["lane"]
            each, every = f"({each})/{team}", f"{every}/{team}"
            lines.append(Line(1, f"const long long {lane} = threadIdx.x & ({team} - 1);"))
        if piece.grid or room is not None:
            if piece.scan is not None:
                each, every = "blockIdx.x", "gridDim.x"
            lines.append(Line(1, f"const long long {thread} = {each};"))
        if piece.grid:
            lines.append(Line(1, f"const long long {step} = {every};"))
        guarded = piece.totals and not piece.grid
        declared = [line for line in first if line.view is None]
        if piece.fallible and self.barrier:
            state = [Line(2, f"if (*{self.local['status']}) goto {self.local['done']};")] if not guarded else []
            lines += declared
            if guarded:
                lines.append(Line(1, f"if (threadIdx.x || *{self.local['status']}) return;"))
                lines += body
            else:
                inner = [Line(line.depth + 1, line.text, line.span, line.view) for line in body]
                lines += [Line(1, "{"), *state, *inner, Line(1, "}"), Line(0, f"{self.local['done']}:")]
        else:
            if piece.fallible:
                failed = f"*{self.local['status']}"
                if piece.rows:  # all threads of a block, or none, while other blocks may fail
                    failed = f"__syncthreads_or({failed} != 0)"
                lines.append(Line(1, f"if ({failed}) return;"))
            lines += declared
            if guarded:
                lines.append(Line(1, "if (threadIdx.x) return;"))
            lines += body
        lines += self.end_folds(results)
        if not (piece.fallible and self.barrier):
            lines = self.joined(lines)
        comments = self.shared_comments or Comments(self.program, False)
        text = comments.text(lines)
        tables = [f"    {t}" for t in self.tables]
        words = set(re.findall(r"[A-Za-z_]\w*", "\n".join([*tables, *(line.text for line in lines)])))
        kept = tuple(declared.rpartition(" ")[2].lstrip("*") in words for declared in head)
        used = [declared for declared, keep in zip(head, kept) if keep]
        signature = f'extern "C" __global__ void {self.name}({", ".join(used)})'
        whole = "\n".join([*wrapped(signature, WIDTH), "{", *tables, *text, "}", ""])
        return KernelText(whole, tuple(self.support), room, tuple(needs), kept)

    def joined(self, lines: list[Line]) -> list[Line]:
        """Lines in which what a thread folds is declared with its first value."""
        for _, variables in self.piece.folds:
            for v in variables:
                name = self.destination[v]
                declared = f"{self.ctype(v.type)} {name};"
                k = next(k for k, line in enumerate(lines) if line.text == declared)
                j = next(j for j, line in enumerate(lines) if line.text.startswith(f"{name} = "))
                lines[j] = replace(lines[j], text=f"{declared[:-1]}{lines[j].text[len(name) :]}")
                del lines[k]
        return lines

    def room(self) -> dict:
        """The reals of one thread's workspace, as the terms of a size."""
        out: dict = {}
        for key, count in self.plan.pools.items():
            elem, terms, *_ = key
            wide = 2 if elem == "Int" and self.dtype == "f32" else 1
            for symbols, c in terms:
                out[symbols] = out.get(symbols, 0) + c * count * wide
        return out

    def held(self, real: str) -> list[Line]:
        """Where a team's rows lie: in shared memory, where those of all of a block's teams fit."""
        work, room, team, held = (self.local[n] for n in ("work", "room", "team", "held"))
        where = f"{room}*(blockDim.x/{team}) <= {HELD} ? {held} + threadIdx.x/{team}*{room}"
        texts = [f"__shared__ {real} {held}[{HELD}]; // rows of this block's teams, where they fit"]
        texts += wrapped(f"{real} *{self.local['own']} = {where} : {work} + {self.local['thread']}*{room};", WIDTH - 4)
        return [Line(1, text) for text in texts]

    def workspace_piece(self, elem: Scalar, name: str, offset: str) -> str:
        place = f"{self.local['own']} + {offset}" if offset else self.local["own"]
        if elem != REAL:
            place = f"({self.ctype(elem)} *)({place})"
        return f"{self.ctype(elem)} *{name} = {place};"

    # ------------------------------------------------------------------------------------ the folds

    def prepare_folds(self, first: list[Line]) -> None:
        """The variables in which each thread folds its share; they outlive the loop."""
        for reduction, variables in self.piece.folds:
            for v in variables:
                name = self.names.fresh(v.name)
                self.destination[v] = name
                value = " = 0" if self.piece.fallible else ""
                first.append(Line(1, f"{self.ctype(v.type)} {name}{value};"))

    def end_folds(self, results: dict[int, str]) -> list[Line]:
        """After the loop: a block's threads together, and its part written."""
        lines: list[Line] = []
        where = {r: results[k] for k, r in enumerate(self.program.body.results) if k in results}
        for reduction, variables in self.piece.folds:
            lines += self.fold_block(reduction, variables)
        if lines:
            lines.append(Line(1, "if (threadIdx.x == 0) {"))
            for _, variables in self.piece.folds:
                for v in variables:
                    lines.append(Line(2, f"{where[v]}[blockIdx.x] = {self.destination[v]};"))
            lines.append(Line(1, "}"))
        return lines

    def fold_block(self, reduction: Reduction, variables: Sequence[Var]) -> list[Line]:
        ctype = self.ctype(variables[0].type)
        names = [self.destination[v] for v in variables]
        lines = []
        if self.piece.rows and reduction.kind in ("sum", "product"):  # one thread of each team has it
            lines.append(Line(1, f"if ({self.local['lane']}) {names[0]} = {self.identity(reduction, variables[0])};"))
        if reduction.kind == "place":
            function, text = block_place(ctype, reduction.least, reduction.last)
            call = f"{names[0]} = {function}({names[0]}, &{names[1]});"
        else:
            function, text = block_reduction(reduction.kind, ctype, ELEM[variables[0].type])
            call = f"{names[0]} = {function}({names[0]});"
        self.support[text] = None
        return [*lines, Line(1, call)]

    def identity(self, reduction: Reduction, var: Var) -> str:
        """What a fold starts with."""
        start = COMBINED[reduction.kind][1][ELEM[var.type]]
        return self.real_literal(float(start)).text if start.isdigit() and var.type == REAL else start

    def start_totals(self, first: list[Line]) -> None:
        """Fold the parts of earlier blocks; the first thread goes on with the results."""
        for reduction, variables in self.piece.totals:
            parts = [self.value[v].text[1:] for v in variables]
            names = [self.names.fresh(v.name) for v in variables]
            ctypes = [self.ctype(v.type) for v in variables]
            many = self.value[self.parts_of[variables[0]]].text
            k = self.names.fresh("k")
            head = f"for (long long {k} = threadIdx.x; {k} < {many}; {k} += blockDim.x)"
            if reduction.kind == "place":
                sign = "<" if reduction.least else ">"
                first += [Line(1, f"{ctypes[j]} {names[j]} = {parts[j]}[0];") for j in (0, 1)]
                y, at = f"{parts[0]}[{k}]", f"{parts[1]}[{k}]"
                better = (
                    f"{y} {sign} {names[0]} || ({y} == {names[0]} && {at} {'>' if reduction.last else '<'} {names[1]})"
                )
                first += [
                    Line(1, f"{head} {{"),
                    Line(2, f"if ({better}) {{ {names[0]} = {y}; {names[1]} = {at}; }}"),
                    Line(1, "}"),
                ]
            else:
                elem = ELEM[variables[0].type]
                first.append(Line(1, f"{ctypes[0]} {names[0]} = {self.identity(reduction, variables[0])};"))
                if reduction.kind == "sum":
                    first.append(Line(1, f"{head} {names[0]} += {parts[0]}[{k}];"))
                else:
                    y = self.names.fresh("y")
                    first += [
                        Line(1, f"{head} {{"),
                        Line(2, f"const {ctypes[0]} {y} = {parts[0]}[{k}];"),
                        Line(2, f"{names[0]} = {combined(reduction.kind, elem, names[0], y)};"),
                        Line(1, "}"),
                    ]
            for v, name in zip(variables, names):
                self.destination[v] = name
                self.value[v] = Expr(name)
            first += self.fold_block(reduction, variables)
            for v in variables:
                del self.destination[v]

    @property
    def parts_of(self) -> dict[Var, Var]:
        """How many parts there are: the last parameter."""
        count = self.program.params[-1]
        return {v: count for _, vs in self.piece.totals for v in vs}

    # ------------------------------------------------------------------------------------ statements

    def failed(self, number: int) -> str:
        self.support[FAIL] = None
        end = f"goto {self.local['done']};" if self.piece.folds else "return;"
        if self.behind:  # the others of the team wait behind its loop
            end = f"goto {self.behind};"
        return f"{{ hyad_fail({self.local['status']}, {number}); {end} }}"

    def loop(self, bind: Bind, op: Loop) -> None:
        if self.piece.scan is not None and op.index is self.piece.scan.index:
            self.scan(bind, op, self.piece.scan)
        elif op.index in self.piece.rows:
            self.row(bind, op)
        elif op.index not in self.piece.grid:
            super().loop(bind, op)
        elif op.index is self.piece.grid[0]:
            self.spread(bind, op)
        else:
            inits, before = self.start(bind, op)
            self.indices.add(op.index)
            self.iteration(bind, op, inits, bind.vars, self.value[op.index].text)
            self.after(op, self.plan.swaps[bind], before)

    def row(self, bind: Bind, op: Loop) -> None:
        """A loop that a team shares: each thread every ``team``-th iteration, the first one from the start on."""
        team, lane = self.local["team"], self.local["lane"]
        count = self.fixed(op.count).at(SHIFT)
        inits, before = self.start(bind, op)
        folds = [(r, bind.vars[r.accs[0]]) for r in reductions(op) or ()]
        for r, v in folds:
            start = op.inits[r.accs[0]]
            if r.kind in ("sum", "product") and not (isinstance(start, Const) and start.value == (r.kind == "product")):
                self.emit(f"if ({lane}) {self.value[v].text} = {self.identity(r, v)};")
        self.alone = True
        self.labels += 1
        label = self.behind = f"behind{self.labels}"
        index, body = self.body(bind, op, inits)
        self.alone, self.behind = False, ""
        self.emit(f"for (long long {index} = {lane}; {index} < {count}; {index} += {team}) {{", bind.span)
        self.lines += body
        self.emit("}")
        if any(f"goto {label};" in line.text for line in body):
            self.emit(f"{label}:;")
        self.after(op, self.plan.swaps[bind], before)
        for r, v in folds:
            value, ctype = self.value[v].text, self.ctype(v.type)
            if r.kind == "place":
                name, text = team_place(ctype, r.least, r.last)
                call = f"{name}({value}, &{self.value[bind.vars[r.accs[1]]].text}, {team})"
            else:
                name, text = team_reduction(r.kind, ctype, ELEM[v.type])
                call = f"{name}({value}, {team})"
            self.support[text] = None
            self.emit(f"{value} = {call};", bind.span)

    def assignment(self, target: str, expr: Expr) -> str:
        text = super().assignment(target, expr)
        return text if self.alone or target.isidentifier() else f"if ({self.local['lane']} == 0) {text}"

    def spread(self, bind: Bind, op: Loop) -> None:
        """The nest: one index space, of which each thread takes every ``step``-th place."""
        nest = [bind]
        while len(nest) < len(self.piece.grid):
            index = self.piece.grid[len(nest)]
            nest.append(next(b for b in nest[-1].op.body.binds if type(b.op) is Loop and b.op.index is index))
        counts = [self.fixed(b.op.count).at(SHIFT) for b in nest]
        inits, before = self.start(bind, op)
        old = self.captured()
        self.enter()
        names = []
        for b in nest:
            names.append(self.names.fresh(b.op.index.name))
            self.value[b.op.index] = Expr(names[-1])
            self.indices.add(b.op.index)
        self.alone = not self.piece.rows
        self.iteration(bind, op, inits, bind.vars, names[0])
        self.alone = True
        body = self.lines
        self.lines = []
        head, tail = self.counting(names, counts)
        self.leave()
        self.lines = old
        for text in head:
            self.emit(text, bind.span)
        self.lines += body
        for text in tail:
            self.emit(text)
        self.after(op, self.plan.swaps[bind], before)

    def counting(self, names: list[str], counts: list[str]) -> tuple[list[str], list[str]]:
        """The head of the loop over an index space, and what stands after its body. There is one division for each
        dim but the first, before the loop: from place to place indices are carried as digits are."""
        thread, step = self.local["thread"], self.local["step"]
        if len(names) == 1:
            return [f"for (long long {names[0]} = {thread}; {names[0]} < {counts[0]}; {names[0]} += {step}) {{"], ["}"]
        head, tail = [], []
        rest, rest_step = thread, step
        steps = {}
        for k in range(len(names) - 1, 0, -1):
            i, n = names[k], counts[k]
            above = self.names.fresh("at") if k > 1 else names[0]
            above_step = self.names.fresh(f"{above}_step")
            steps[i] = self.names.fresh(f"{i}_step")
            known = n.isdigit() and int(n) > 0
            if not known:
                self.support[QUOTIENT] = None
            quotient = "{0}/{1}" if known else "hyad_quotient({0}, {1})"
            kind = "long long" if k == 1 else "const long long"
            head.append(f"{kind} {above} = {quotient.format(rest, n)};")
            head.append(f"const long long {above_step} = {quotient.format(rest_step, n)};")
            head.append(f"long long {i} = {rest} - {above}*{n};")
            head.append(f"const long long {steps[i]} = {rest_step} - {above_step}*{n};")
            rest, rest_step = above, above_step
        for k in range(len(names) - 1, 0, -1):
            tail.append(f"    {names[k]} += {steps[names[k]]};")
        for k in range(len(names) - 1, 0, -1):
            tail.append(f"    if ({names[k]} >= {counts[k]}) {{ {names[k]} -= {counts[k]}; {names[k - 1]}++; }}")
        return [*head, f"for (; {names[0]} < {counts[0]}; {names[0]} += {rest_step}) {{"], [*tail, "}"]

    # ------------------------------------------------------------------------------------ scans

    def once(self, text: str, name: str) -> str:
        """The statement that one thread writes a final state by, or each block's first one its part."""
        if self.piece.scan.totals:
            return f"if (threadIdx.x == 0) {name}[blockIdx.x] = {text.partition(' = ')[2]}"
        return f"if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {text}"

    def scan(self, bind: Bind, op: Loop, scan: Scanned) -> None:
        """A loop of which a block takes as many iterations at once as it has threads. The terms are made by all of its
        threads, of the last iteration again where there are too many; the rest by those that have an iteration."""
        count = self.fixed(op.count).at(SHIFT)
        self.flush_all()
        self.span = None
        self.prepare_states(bind, op)
        start, end, tile, at = (self.names.fresh(n) for n in ("from", "to", "tile", "at"))
        if scan.rows:
            start, end = "0", count
        else:
            many = self.names.fresh("many")
            tiles = f"({count} + blockDim.x - 1)/blockDim.x"
            self.emit(f"const long long {many} = ({tiles} + gridDim.x - 1)/gridDim.x*blockDim.x;")
            self.emit(f"const long long {start} = blockIdx.x*{many};")
            self.emit(f"const long long {end} = {start} + {many} < {count} ? {start} + {many} : {count};")
        carries = [self.carry(op, kind, numbers) for kind, numbers in scan.states]
        if scan.parts:
            self.carry_parts(scan, carries, op)
        old = self.captured()
        self.enter()
        index = self.names.fresh(op.index.name)
        self.value[op.index] = Expr(index)
        self.indices.add(op.index)
        self.emit(f"const long long {at} = {tile} + threadIdx.x;")
        self.emit(f"const long long {index} = {at} < {end} ? {at} : {end} - 1;")
        self.statements(op.body, {}, op.body.binds[: scan.before])
        self.span = None
        for (kind, numbers), carried in zip(scan.states, carries):
            accs = [op.accs[k] for k in numbers[-width(kind) :]]
            terms = [self.as_type(op.body.results[k], op.accs[k].type).text for k in numbers]
            ctype, elem = self.ctype(accs[0].type), ELEM[accs[0].type]
            names = [self.names.fresh(n if len(numbers) > 1 else "before") for n in parts_of(kind)]
            for name, term, zero in zip(names, terms, identities(kind, elem)):
                self.emit(f"{ctype} {name} = {at} < {end} ? {term} : {zero};")
            alls = self.block_scan(kind, ctype, elem, names)
            states = behind(kind, elem, carried[-len(accs) :], names)
            for acc, state in zip(accs, states):
                if self.uses.get(acc):
                    name = self.names.fresh(acc.name)
                    self.emit(f"const {ctype} {name} = {state};")
                    self.value[acc] = Expr(name)
            self.go_on(kind, ctype, elem, carried, alls)
        if len(op.body.binds) > scan.before or len(op.body.results) > len(op.accs):
            self.emit(f"if ({at} >= {end}) continue;")
            self.rest(bind, op, index)
        self.leave()
        body, self.lines = self.lines, old
        if not any(re.search(rf"\b{index}\b", line.text) for line in body[2:]):
            del body[1]
        self.emit(f"for (long long {tile} = {start}; {tile} < {end}; {tile} += blockDim.x) {{", bind.span)
        self.lines += body
        self.emit("}")
        for (_, numbers), carried in zip(scan.states, carries):
            for k, name in zip(reversed(numbers), reversed(carried)):
                self.value[bind.vars[k]] = Expr(name)

    def prepare_states(self, bind: Bind, op: Loop) -> None:
        """What is folded beside the states starts at each thread's own."""
        for k, (acc, var) in enumerate(zip(op.accs, bind.vars)):
            if var in self.destination:
                name = self.destination[var]
                self.emit(f"{name} = {self.as_type(op.inits[k], acc.type).text};")
                for v in (acc, var):
                    self.value[v], self.slot[v] = Expr(name, PRIMARY, frozenset({name})), name

    def carry(self, op: Loop, kind: str, numbers: tuple[int, ...]) -> list[str]:
        """Variables of the state before a tile; of what all tiles before do, where that is to be found out."""
        numbers = numbers if self.piece.scan.totals else numbers[-width(kind) :]
        names = []
        for k in numbers:
            t = op.accs[k].type
            names.append(self.names.fresh(op.accs[k].name))
            self.emit(f"{self.ctype(t)} {names[-1]} = {self.as_type(op.inits[k], t).text};")
        return names

    def carry_parts(self, scan: Scanned, carries: list[list[str]], op: Loop) -> None:
        """The states behind the blocks before this one, from these blocks' parts."""
        parts = [self.buffer_name[self.plan.place[p].buffer] for p in scan.parts]
        k, at = self.names.fresh("k"), self.names.fresh("at")
        self.emit(f"for (long long {k} = 0; {k} < blockIdx.x; {k} += blockDim.x) {{")
        self.enter()
        self.emit(f"const long long {at} = {k} + threadIdx.x;")
        for (kind, numbers), carried in zip(scan.states, carries):
            t = op.accs[numbers[-1]].type
            ctype, elem = self.ctype(t), ELEM[t]
            names = [self.names.fresh("part") for _ in numbers]
            for name, zero in zip(names, identities(kind, elem)):
                self.emit(f"{ctype} {name} = {at} < blockIdx.x ? {parts.pop(0)}[{at}] : {zero};")
            self.go_on(kind, ctype, elem, carried, self.block_scan(kind, ctype, elem, names))
        self.leave()
        self.emit("}")

    def block_scan(self, kind: str, ctype: str, elem: str, names: list[str]) -> list[str]:
        """Scan variables of a block's threads: each becomes what comes before; the variables of what all give."""
        if len(names) > 1 or kind == "product" and elem == "real":
            self.support[TIMES.replace("REAL", ctype)] = None
        function, text = block_scan(kind, ctype, elem)
        self.support[text] = None
        alls = [self.names.fresh(f"{name}_all") for name in names]
        self.emit(f"{ctype} {', '.join(alls)};")
        self.emit(f"{function}({', '.join(f'&{name}' for name in (*names, *alls))});")
        return alls

    def go_on(self, kind: str, ctype: str, elem: str, carried: list[str], change: list[str]) -> None:
        """The states, or what tiles do to them, behind a change."""
        made = behind(kind, elem, carried, change)
        if len(made) == 1:
            self.emit(f"{carried[0]} = {made[0]};")
            return
        names = [self.names.fresh("next") for _ in made]
        for name, text in zip(names, made):
            self.emit(f"const {ctype} {name} = {text};")
        for name, state in zip(names, carried):
            self.emit(f"{state} = {name};")

    def rest(self, bind: Bind, op: Loop, index: str) -> None:
        """The rest of an iteration of a scan, with its states known."""
        self.statements(op.body, {}, op.body.binds[self.piece.scan.before :])
        self.span = bind.span
        terms = {k for _, numbers in self.piece.scan.states for k in numbers}
        todo = []
        for k, r in enumerate(op.body.results):
            if k in terms or isinstance(type_of(r), Arr):
                continue
            if k < len(op.accs):
                name, t = self.value[op.accs[k]].text, op.accs[k].type
                todo.append((name, name, self.as_type(r, t), t, self.made.get(r)))
            else:
                var = bind.vars[k]
                target = self.element_of(var, [Expr(index)])
                buffer = self.plan.resolve(self.plan.place[var])[0]
                todo.append((target, buffer, self.as_type(r, var.type.elem), var.type.elem, self.made.get(r)))
        self.read_before_moves(op.body, todo)
        self.move(op.body)
        self.assign(todo)

    def store(self, bind: Bind, op: Prim, var: Var) -> None:
        buffer = self.plan.root(var)
        if not self.alone:  # one thread of a team
            self.alone = True
            self.store(bind, op, var)
            self.alone = False
            self.lines[-1] = replace(self.lines[-1], text=f"if ({self.local['lane']} == 0) {self.lines[-1].text}")
            return
        if op.name != "add-at" or buffer not in self.atomic:
            super().store(bind, op, var)
            return
        self.support[ADD_AT] = None
        value = op.args[-1]
        if not is_array(value):
            *subs, new = self.fit(op.args[1:])
            self.changes(buffer)
            if isinstance(value, Const) and buffer.elem == REAL:
                new = self.real_literal(value.value)
            self.emit(f"hyad_add(&{self.element_of(var, subs)}, {new.text});")
            return
        subs = [self.fixed(a) for a in op.args[1:-1]]
        self.changes(buffer)
        base, offset, _, _ = self.address(self.plan.of(var), subs)
        self.names.enter()
        k = self.names.fresh("k")
        source, start, _, _ = self.address(value)
        self.emit(self.loop_head(k, self.length(value.type.dims).text))
        self.emit(f"    hyad_add(&{base}[{plus(offset, Expr(k)).text}], {source}[{plus(start, Expr(k)).text}]);")
        self.emit("}")
        self.names.leave()
