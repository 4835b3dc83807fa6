"""Matrices that a nest reads the other way round: by tiles, through shared memory.

Neighbouring threads have neighbouring columns of what they write. In a matrix that is read with its subscripts the
other way round these are neighbouring rows, so that a warp reads 32 numbers from as many stretches of memory. So a
block has a tile of 32 x 32 places at a time: it reads the tile of the matrix in the order of memory, and each thread
its element from shared memory::

    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long first = tile/across*32, start = tile%across*32;
        hyad_turn(x_tile, x + start*n + first, n, m - start, n - first);
        __syncthreads();
        HYAD_UNROLL
        for (int k = 0; k < 4; k++) {
            const int row = (int)(threadIdx.x >> 5) + 8*k;
            const long long i = first + row, j = start + lane;
            if (i < n && j < m) {
                out[i*m + j] = x_tile[lane*33 + row];
            }
        }
        __syncthreads();
    }

Rows of a tile lie 33 elements apart, in different banks.

Design decision: where such a matrix is read in any case, and nothing in the nest can fail, for all threads of a block
come to the barriers.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyad.core import Arr, Atom, Bind, Check, Loop, Prim, Program, Var, While, all_binds

from .expressions import Expr
from .staging import mostly_read

TILES = 4  # arrays that are read by tiles, of 8.5 kB each

TURN = """\
/* a tile of 32 x 32 elements, in which rows lie 33 apart; in memory they lie far apart, and so many are left */
template <class T>
static __device__ inline void hyad_turn(T *tile, const T *__restrict__ from, long long far, long long rows,
    long long columns) {
  const int lane = threadIdx.x & 31, row = threadIdx.x >> 5;
  T held[4] = {};
  HYAD_UNROLL
  for (int k = 0; k < 4; k++)
    if (row + 8*k < rows && lane < columns) held[k] = from[(row + 8*k)*far + lane];
  HYAD_UNROLL
  for (int k = 0; k < 4; k++) tile[(row + 8*k)*33 + lane] = held[k];
}
"""


def turned_reads(program: Program, nest: Sequence[Bind]) -> list[Var]:
    """The arrays with an axis for each loop of a nest that it reads with the last two indices the other way round."""
    if len(nest) < 2 or any(type(b.op) in (Check, While) for b in all_binds(nest[0].op.body)):
        return []
    *outer, i, j = (b.op.index for b in nest)
    wanted = [*outer, j, i]
    rows: dict[Atom, tuple[Var, list[Atom]]] = {p: (p, []) for p in program.params if isinstance(p.type, Arr)}
    found: dict[Var, None] = {}
    for b in all_binds(nest[0].op.body):
        op = b.op
        if type(op) is Loop and b not in nest and any(isinstance(v.type, Arr) for v in b.vars):
            return []
        if type(op) is Prim and op.name == "get" and op.args[0] in rows:
            p, subs = rows[op.args[0]]
            subs = [*subs, *op.args[1:]]
            if isinstance(b.vars[0].type, Arr):
                rows[b.vars[0]] = p, subs
            elif len(subs) == len(wanted) and all(a is x for a, x in zip(subs, wanted)):
                found[p] = None
    return [p for p in found if mostly_read(program, p, wanted)]


def heads_of_tiles(
    counts: Sequence[str],
    names: Sequence[str],
    own: Sequence[str],
    row: str,
    lane: str,
    loads: Sequence[tuple[str, str, str, Expr | None, str, str]],
) -> tuple[list[str], list[str]]:
    """The head of a loop over tiles, and what stands behind its body. ``loads``: for each tile its name, its elements'
    type, the array, the row that its last two axes begin at, and how long these are."""
    tile, tiles, first, start, k = own
    *outer, n, m = counts
    *above, i, j = names
    across, down = f"(({m} + 31)/32)", f"(({n} + 31)/32)"
    head = [f"__shared__ {ctype} {name}[{32 * 33}];" for name, ctype, *_ in loads]
    head.append(f"const int {lane} = threadIdx.x & 31;")
    head.append(f"const long long {tiles} = {'*'.join([*outer, down, across])};")
    head.append(f"for (long long {tile} = blockIdx.x; {tile} < {tiles}; {tile} += gridDim.x) {{")
    inner = [f"const long long {start} = {tile}%{across}*32;"]
    rest = f"{tile}/{across}"
    if above:
        inner.append(f"const long long {first} = {rest}%{down}*32;")
        rest = f"{rest}/{down}"
        for name, count in reversed(list(zip(above, outer))[1:]):
            inner.append(f"const long long {name} = {rest}%{count};")
            rest = f"{rest}/{count}"
        inner.append(f"const long long {above[0]} = {rest};")
    else:
        inner.append(f"const long long {first} = {rest}*32;")
    for name, _, array, before, height, width in loads:
        at = f"({before.text} + {start})" if before else start
        place = f"{at}*{width} + {first}"
        inner.append(f"hyad_turn({name}, {array} + {place}, {width}, {height} - {start}, {width} - {first});")
    inner += [
        "__syncthreads();",
        "HYAD_UNROLL",
        f"for (int {k} = 0; {k} < 4; {k}++) {{",
        f"    const int {row} = (int)(threadIdx.x >> 5) + 8*{k};",
        f"    const long long {i} = {first} + {row}, {j} = {start} + {lane};",
        f"    if ({i} < {n} && {j} < {m}) {{",
    ]
    return [*head, *("    " + text for text in inner)], ["        }", "    }", "    __syncthreads();", "}"]
