"""CUDA text of what several threads do together: matrix products, reductions and scans of a warp, a team or a block.

Each function here gives the text of a device function and its name; ``kernels`` calls them from what it prints.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyad.core import BOOL, INT, REAL

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
#: By the type of the elements.
ADD_AT = {
    "long long": """\
static __device__ inline void hyad_add(long long *to, long long x) {
  atomicAdd((unsigned long long *)to, (unsigned long long)x);
}
""",
    "double": "static __device__ inline void hyad_add(double *to, double x) { atomicAdd(to, x); }\n",
    "float": "static __device__ inline void hyad_add(float *to, float x) { atomicAdd(to, x); }\n",
}
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


def named_place(scope: str, ctype: str, least: bool, last: bool) -> tuple[str, str]:
    """The name of a function that finds a place, and when what another thread has is better."""
    name = (
        f"hyad_{scope}_{'min' if least else 'max'}_place{'_last' if last else ''}_{ctype.replace('long long', 'int')}"
    )
    return name, f"y {'<' if least else '>'} x || (x == y && y_at {'>' if last else '<'} x_at)"


def block_place(ctype: str, least: bool, last: bool) -> tuple[str, str]:
    """As ``block_reduction``, of the largest or smallest value and where it is: ``*at`` becomes the place."""
    name, better = named_place("block", ctype, least, last)
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


SCALE = """\
/* what sums below x are multiplied by to be sums below y: exp(x - y), also where both are infinite */
static __device__ inline REAL hyad_scale(REAL x, REAL y) { return x == y ? (REAL)1 : exp(x - y); }
"""
LEFT = """\
/* what a factor leaves of a state: -0 forgets it, whatever it is; 0 times what has become too large on the way to it is
   0 */
static __device__ inline REAL hyad_left(REAL x, REAL y) {
  if (x == 0 && (1/x < 0 || y == y)) return x;
  return y == 0 && x == x ? (REAL)0 : x*y;
}
/* two factors as one */
static __device__ inline REAL hyad_both(REAL x, REAL y) {
  if ((x == 0 && 1/x < 0) || (y == 0 && 1/y < 0)) return -(REAL)0;
  return (x == 0 && y == y) || (y == 0 && x == x) ? (REAL)0 : x*y + 0;
}
"""
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
        return (*("1" if i == j else "-0.f" for i in n for j in n), *("0" for _ in n))
    return ("1", "0") if kind == "linear" else (COMBINED[kind][1][elem],)


def behind(kind: str, elem: str, first: Sequence[str], change: Sequence[str]) -> list[str]:
    """What a change makes of states, or of what came before it: ``first`` has the parts of either."""
    n = width(kind)
    if n == 1 and kind != "linear":
        return [scanned(kind, elem, first[0], change[0])]
    matrix, vector = change[: n * n], change[n * n :]
    *before, states = [first[k : k + n] for k in range(0, len(first), n)]  # rows of a matrix, if any, and the states

    def times(function: str, i: int, column: Sequence[str]) -> str:
        return " + ".join(f"{function}({matrix[i * n + k]}, {column[k]})" for k in range(n))

    made = [times("hyad_both", i, [row[j] for row in before]) for i in range(n) for j in range(n)] if before else []
    return [*made, *(f"{times('hyad_left', i, states)} + {vector[i]}" for i in range(n))]


def scanned(kind: str, elem: str, x: str, y: str) -> str:
    """``x``, then ``y``."""
    return f"hyad_times({x}, {y})" if kind == "product" and elem == "real" else combined(kind, elem, x, y)


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
    name, better = named_place("team", ctype, least, last)
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
