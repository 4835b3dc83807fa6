"""Rows that neighbouring threads have, brought and taken away through shared memory.

The 2 x 15 block of a Jacobian that each thread writes is 30 numbers side by side, so that the same store of two threads
goes to places that lie 240 bytes apart: 32 transactions for what fits into eight. So the threads of a warp have a
*tile* in shared memory, a row for each. They fill it together, in the order of memory, before each computes; and what
each has made they write out together. A row that a thread reads or writes is its row of the tile, and no other text
changes::

    hyad_begin(arrived, 1);
    hyad_fetch<15>(p_tile, p + (thread - lane)*15, hyad_rows(n - (thread - lane)), arrived);
    for (long long first = thread - lane; first < n; first += step) {
        const unsigned rows = hyad_rows(n - first);
        hyad_arrived(arrived, turn++ & 1);
        __syncwarp();
        if (lane < rows) {
            ...
        }
        hyad_made();
        __syncwarp();
        hyad_send<30>(out_tile, out + first*30, rows);
        hyad_fetch<15>(p_tile, p + (first + step)*15, hyad_rows(n - (first + step)), arrived);
    }
    hyad_sent();

From compute capability 9.0 on the copy engine moves the rows (``cp.async.bulk``): a warp's next rows are on their way
while it writes out the last ones, and no thread waits for a load. It wants rows without gaps, at addresses and of
lengths that 16 divides; a warp that has others, and older GPUs, move them element by element, at the same places of the
text. Rows of so many elements that the threads of a warp would find theirs in a few banks lie an odd number of elements
apart, and are always moved so (``hyad_take``, ``hyad_give``).

Rows that a thread finds by an index, those of a camera or of a corner, lie anywhere, but each is one piece: the threads
of a warp read them one after the other, a row by as many neighbours as it has elements. So the indices come first, and
what an index is read by is looked at before it is used, for the checks are only made later::

        long long camera_at = -1;
        if (lane < rows) {
            camera_at = camera[first + lane];
        }
        hyad_gather<11>(cameras_tile, cameras, camera_at, c);

So are what they add to such rows, in the gradient: each thread has a row of the tile for its terms, and the warp adds
them behind the barrier, ``hyad_add_rows<11>(cameras_bar_tile, cameras_bar, camera_at, c)``. 32 atomic additions are to
a few rows then, not to one element of each of 32.

The second barrier is before the rows are written out, the first one before they are made again.

Where only the host knows how wide rows are, it gives a block as much shared memory as they need (``Launch.shared``). A
row that is too wide, or for which a block has no such memory, is read or written where it lies; a thread has a pointer
to its row, wherever that is::

    const long long room = hyad_room<double>();
    const long long y_apart = hyad_apart(d, room);
    double *const y_tile = (double *)hyad_shared_rows;
    for (long long first = thread - lane; first < total; first += step) {
        const unsigned rows = hyad_rows(total - first);
        const long long i = first + lane;
        const long long y_at = i*d;
        double *const y_row = y_apart ? y_tile + threadIdx.x*y_apart : y + y_at;
        __syncwarp();
        if (lane < rows) {
            ...
        }
        __syncwarp();
        hyad_rows_out(y_tile, y, y_at, d, y_apart, rows);
    }

Such rows may lie anywhere, one for each place of a nest: those of the points of a mixture for one of its components are
as far apart as the point has components. What is read but once is left to the cache, which has a row's neighbours when
they are read: to move it costs more instructions than to read it. There is no such cache for what is written.

Design decision: by warps, since a barrier of the block would hold up four warps for one. A block has tiles of ``ROOM``
bytes at most: four such blocks, 16 warps, are at once on a multiprocessor, as many as kernels of such length have
registers for; or 8 warps, in smaller blocks, for results that are too wide for that.
Rows of one or two elements gain nothing: their neighbours share what is moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hyad.core import Arr, Atom, Block, Const, Loop, Prim, Program, Var, all_binds, atoms_of, blocks_of, same_atoms
from hyad.program.journal import on

NAME = "staging"  # of the optimisation, to switch it off
LEAST = 3  # elements of a row from which on it is staged
BANKS = 4  # threads of a warp that may find elements of rows without gaps in one bank
ROOM = 47 << 10  # bytes of shared memory of a block for its tiles: about what it may have without asking
FOLD = 768  # bytes of it that a fold needs at most

SIZES = {"double": 8, "float": 4, "long long": 8, "int": 4}  # bytes of an element

ROWS = """\
/* how many of a warp's threads have one of the rows that are left */
static __device__ inline unsigned hyad_rows(long long left) {
  return left < 32 ? left > 0 ? (unsigned)left : 0u : 32u;
}
"""
MOVE = """\
/* {what}: neighbours move neighbours; in the tile rows lie an odd number of elements apart */
template <unsigned W, class T>
static __device__ inline void {name}({head}, unsigned rows) {{
  const unsigned lane = threadIdx.x & 31u, many = W < {most} ? W : {most};
  tile += (threadIdx.x - lane)*(W | 1);
  #ifdef __CUDACC__
  #pragma unroll 1
  #endif
  for (unsigned start = lane; start < rows*W; start += 32*many) {{ /* so many on the way at once */
    T held[many];
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < many; k++) {{
      const unsigned at = start + 32*k;
      if (at < rows*W) held[k] = {source};
    }}
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < many; k++) {{
      const unsigned at = start + 32*k;
      if (at < rows*W) {to} = held[k];
    }}
  }}
}}
"""
GATHER = """\
/* the rows that a warp's threads have found, of n, into its tile: neighbours move neighbours; -1 is none */
template <unsigned W, class T>
static __device__ inline void hyad_gather(T *__restrict__ tile, const T *__restrict__ from, long long row,
    long long n) {
  const unsigned lane = threadIdx.x & 31u, many = W < 8 ? W : 8;
  const long long start = row >= 0 && row < n ? row*W : -1, end = n*W;
  tile += (threadIdx.x - lane)*(W | 1);
  #ifdef __CUDACC__
  #pragma unroll 1
  #endif
  for (unsigned first = 0; first < W; first += many) { /* so many on the way at once */
    T held[many];
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < many; k++) {
      const unsigned at = 32*(first + k) + lane;
      if (first + k < W) {
        const long long place = __shfl_sync(0xffffffffu, start, at/W);
        held[k] = (unsigned long long)place < (unsigned long long)end ? from[place + at % W] : (T)0;
      }
    }
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < many; k++) {
      const unsigned at = 32*(first + k) + lane;
      if (first + k < W) tile[W % 2 ? at : at + at/W] = held[k];
    }
  }
}
"""
ADD = """\
/* the rows of a warp's tile, added to those that its threads have found, of n: neighbours add to neighbours */
template <unsigned W, class T>
static __device__ inline void hyad_add_rows(const T *__restrict__ tile, T *__restrict__ to, long long row,
    long long n) {
  const unsigned lane = threadIdx.x & 31u;
  const long long start = row >= 0 && row < n ? row*W : -1;
  tile += (threadIdx.x - lane)*(W | 1);
  #ifdef __CUDACC__
  #pragma unroll 4
  #endif
  for (unsigned at = lane; at < 32*W; at += 32) {
    const long long place = __shfl_sync(0xffffffffu, start, at/W);
    if (place >= 0) hyad_add(&to[place + at % W], tile[W % 2 ? at : at + at/W]);
  }
}
"""
BULK = """\
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HYAD_BULK /* there is a copy engine; what it does in shared memory is fenced off from what threads do there */
static __device__ inline unsigned hyad_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
static __device__ inline void hyad_bulk_made(void) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

/* each thread is done with its rows: the copy engine may read and write them */
static __device__ inline void hyad_made(void) {
  #ifdef HYAD_BULK
  hyad_bulk_made();
  #endif
}

#ifdef HYAD_BULK
/* whether the copy engine takes them */
static __device__ inline bool hyad_whole(const void *p, unsigned bytes) {
  return (((unsigned long long)p | bytes) & 15) == 0;
}
#endif

/* elements side by side, moved by the threads of a warp, so many on the way at once */
template <unsigned many, class T>
static __device__ inline void hyad_move(T *__restrict__ to, const T *__restrict__ from, unsigned count) {
  #ifdef __CUDACC__
  #pragma unroll 1
  #endif
  for (unsigned start = threadIdx.x & 31u; start < count; start += 32*many) {
    T held[many];
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < many; k++)
      if (start + 32*k < count) held[k] = from[start + 32*k];
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < many; k++)
      if (start + 32*k < count) to[start + 32*k] = held[k];
  }
}
"""
FETCH = """\
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* what counts the copies into tiles: a phase ends when so many were announced, and all their bytes are there */
static __device__ inline void hyad_bulk_begin(unsigned long long *arrived, unsigned many) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(hyad_shared(arrived)), "r"(many) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ inline void hyad_bulk_announce(unsigned long long *arrived, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    :: "r"(hyad_shared(arrived)), "r"(bytes) : "memory");
}
static __device__ inline void hyad_bulk_fetch(void *to, const void *from, unsigned bytes, unsigned long long *arrived) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    :: "r"(hyad_shared(to)), "l"(from), "r"(bytes), "r"(hyad_shared(arrived)) : "memory");
}
static __device__ inline bool hyad_bulk_arrived(unsigned long long *arrived, unsigned parity) {
  unsigned there;
  asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
    "selp.u32 %0, 1, 0, p;\\n}" : "=r"(there) : "r"(hyad_shared(arrived)), "r"(parity) : "memory");
  return there;
}
#endif

/* before the first rows of a warp are fetched, into so many tiles */
static __device__ inline void hyad_begin(unsigned long long *arrived, unsigned tiles) {
  #ifdef HYAD_BULK
  if ((threadIdx.x & 31u) == 0) hyad_bulk_begin(arrived, tiles);
  __syncwarp(0xffffffffu);
  #else
  (void)arrived, (void)tiles;
  #endif
}

/* a warp's rows on their way into its tile */
template <unsigned W, class T>
static __device__ inline void hyad_fetch(T *tile, const T *from, unsigned rows, unsigned long long *arrived) {
  tile += (threadIdx.x & ~31u)*W;
  #ifdef HYAD_BULK
  const unsigned bytes = rows*W*(unsigned)sizeof(T);
  const bool whole = hyad_whole(from, bytes);
  if (!whole) hyad_move<(W < 8 ? W : 8)>(tile, from, rows*W);
  if ((threadIdx.x & 31u) == 0) {
    hyad_bulk_announce(arrived, whole ? bytes : 0);
    if (whole && bytes) hyad_bulk_fetch(tile, from, bytes, arrived);
  }
  #else
  (void)arrived;
  hyad_move<(W < 8 ? W : 8)>(tile, from, rows*W);
  #endif
}

/* waits for the rows that were fetched for the turn-th time, which is counted modulo 2 */
static __device__ inline void hyad_arrived(unsigned long long *arrived, unsigned turn) {
  #ifdef HYAD_BULK
  while (!hyad_bulk_arrived(arrived, turn)) {}
  #else
  (void)arrived, (void)turn;
  #endif
}
"""
SEND = """\
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
static __device__ inline void hyad_bulk_send(void *to, const void *from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
    :: "l"(to), "r"(hyad_shared(from)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
static __device__ inline void hyad_bulk_sent(void) {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#endif

/* a warp's rows on their way out of its tile */
template <unsigned W, class T>
static __device__ inline void hyad_send(const T *tile, T *to, unsigned rows) {
  tile += (threadIdx.x & ~31u)*W;
  #ifdef HYAD_BULK
  const unsigned bytes = rows*W*(unsigned)sizeof(T);
  if (hyad_whole(to, bytes)) {
    if ((threadIdx.x & 31u) == 0 && bytes) hyad_bulk_send(to, tile, bytes);
    return;
  }
  #endif
  hyad_move<(W < 2 ? W : 2)>(to, tile, rows*W); /* more would take registers from what is computed */
}

/* waits until the copy engine has read what was sent */
static __device__ inline void hyad_sent(void) {
  #ifdef HYAD_BULK
  if ((threadIdx.x & 31u) == 0) hyad_bulk_sent();
  #endif
}
"""
SIZED = """\
/* shared memory that the launch gives a block, and how many elements of it each thread has */
#ifdef CUDA_ON_CPU
static char *const hyad_shared_rows = cuda_on_cpu_sized;
static inline unsigned hyad_shared_bytes(void) { return cuda_on_cpu::sized; }
#else
extern __shared__ double2 hyad_shared_rows[];
static __device__ inline unsigned hyad_shared_bytes(void) {
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}
#endif
template <class T> static __device__ inline long long hyad_room(void) {
  return hyad_shared_bytes()/(blockDim.x*(unsigned)sizeof(T));
}

/* how far apart rows of so many elements lie in shared memory: an odd number; 0 where it has no room for them */
static __device__ inline long long hyad_apart(long long width, long long room) {
  return width > 0 && (width | 1) <= room ? width | 1 : 0;
}
"""
MOVE_SIZED = """\
/* a warp's rows {what} its tile, each from where its thread says: neighbours move neighbours */
template <class T>
static __device__ inline void {name}({head}, long long at, long long width,
    long long apart, unsigned rows) {{
  if (!apart) return;
  const unsigned lane = threadIdx.x & 31u, wide = (unsigned)width;
  const unsigned down = 32u/wide, right = 32u - down*wide; /* from one place to that of the next round */
  unsigned row = lane/wide, column = lane - row*wide;
  tile += (threadIdx.x - lane)*apart;
  #ifdef __CUDACC__
  #pragma unroll 1
  #endif
  for (unsigned start = 0; start < rows*wide; start += {most}*32) {{ /* so many on the way at once */
    T held[{most}];
    T *to[{most}];
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < {most}; k++) {{
      const long long place = __shfl_sync(0xffffffffu, at, row & 31u);
      to[k] = row < rows ? {to} : 0;
      if (to[k]) held[k] = {source};
      row += down, column += right;
      if (column >= wide) column -= wide, row++;
    }}
    #ifdef __CUDACC__
    #pragma unroll
    #endif
    for (unsigned k = 0; k < {most}; k++)
      if (to[k]) *to[k] = held[k];
  }}
}}
"""
ROWS_IN = MOVE_SIZED.format(
    what="into",
    name="hyad_rows_in",
    head="T *__restrict__ tile, const T *__restrict__ from",
    most=4,
    to="tile + row*apart + column",
    source="from[place + column]",
)
ROWS_OUT = MOVE_SIZED.format(
    what="out of",
    name="hyad_rows_out",
    head="const T *__restrict__ tile, T *__restrict__ array",
    most=4,
    to="array + place + column",
    source="tile[row*apart + column]",
)
IN_TILE = "tile[W % 2 ? at : at + at/W]"
TAKE = MOVE.format(
    what="a warp's rows into its tile",
    name="hyad_take",
    head="T *__restrict__ tile, const T *__restrict__ from",
    most=8,
    source="from[at]",
    to=IN_TILE,
)
GIVE = MOVE.format(
    what="a warp's rows out of its tile",
    name="hyad_give",
    head="const T *__restrict__ tile, T *__restrict__ to",
    most=2,  # more would take registers from what is computed
    source=IN_TILE,
    to="to[at]",
)


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of ``width`` elements of the array ``array``, which are written (``given``) or read; there are ``rows`` of
    them, C text, where that is not how many iterations there are. ``name`` is the tile's; ``at`` the variable that has
    a thread's row, where that is not its iteration's: what is written is added to it then."""

    array: str
    name: str
    ctype: str
    width: int
    given: bool
    rows: str = ""
    at: str = ""

    @property
    def bulk(self) -> bool:
        """Whether the copy engine may move its rows, which lie without gaps then: few threads of a warp find theirs in
        the same bank."""
        return not self.at and math.gcd(self.width, 32) <= BANKS

    @property
    def apart(self) -> int:
        """Elements from row to row in the tile."""
        return self.width if self.bulk else self.width | 1

    @property
    def bytes(self) -> int:
        """Those of one thread's row."""
        return self.apart * SIZES[self.ctype]

    def declared(self, threads: int) -> str:
        aligned = "alignas(16) " if self.bulk else ""
        return f"{aligned}__shared__ {self.ctype} {self.name}[{threads * self.apart}];"

    def own(self) -> str:
        """Where the thread's own row begins."""
        return f"{self.name} + threadIdx.x*{self.apart}"

    def moved(self, first: str, rows: str, arrived: str = "") -> str:
        """The statement that all threads of a warp do together, of which so many have a row, from the ``first`` on;
        ``arrived`` is told of what is fetched."""
        if self.at:
            name = "hyad_add_rows" if self.given else "hyad_gather"
            return f"{name}<{self.width}>({self.name}, {self.array}, {self.at}, {self.rows});"
        many = f"hyad_rows({self.rows} - {first})" if self.rows else rows
        name = (
            ("hyad_send" if self.given else "hyad_fetch") if self.bulk else "hyad_give" if self.given else "hyad_take"
        )
        told = f", {arrived}" if self.bulk and not self.given else ""
        return f"{name}<{self.width}>({self.name}, {self.array} + {first}*{self.width}, {many}{told});"


@dataclass(frozen=True, slots=True)
class SizedTile:
    """Rows of an array of which only the host knows the width: ``width``, C text, is the product of ``dims``. ``at`` is
    where a thread's row begins in the array, ``apart`` how far apart rows lie in the tile (0: there is no room), and
    ``row`` points to the thread's row, all three the names of variables."""

    array: str
    name: str
    ctype: str
    dims: tuple[Atom, ...]
    width: str
    given: bool
    at: str
    apart: str
    row: str

    def moved(self, rows: str) -> str:
        """The statement that all threads of a warp do together, of which so many have a row."""
        name = "hyad_rows_out" if self.given else "hyad_rows_in"
        return f"{name}({self.name}, {self.array}, {self.at}, {self.width}, {self.apart}, {rows});"


def room_of_rows(ctype: str, threads: int, folds: int = 0) -> int:
    """How many elements there is room for in shared memory, for each of so many threads of a block."""
    return (ROOM - FOLD * folds) // threads // SIZES[ctype]


def by_warps_sized(
    tiles: Sequence[SizedTile],
    counts: tuple[str, str, str],
    names: tuple[str, str, str, str],
    indices: Sequence[str],
    places: Sequence[str],
) -> tuple[list[str], list[str]]:
    """What stands before and behind what a thread does with its rows. ``counts``: the number of the thread, how many
    there are, and how many rows; ``names``: the first row of its warp, its place there, how many rows that has, and how
    many elements each thread has room for. ``indices`` declare the nest's, and ``places`` are where the rows of each
    tile begin."""
    (thread, step, count), (first, lane, rows, room) = counts, names
    head = [f"const unsigned {lane} = threadIdx.x & 31u;"]
    head.append(f"const long long {room} = hyad_room<{tiles[0].ctype}>();")
    taken: list[str] = []
    for tile in tiles:
        left = " - ".join([room, *taken])
        head.append(f"const long long {tile.apart} = hyad_apart({tile.width}, {left});")
        behind = f" + blockDim.x*{taken[0] if len(taken) == 1 else '(' + ' + '.join(taken) + ')'}" if taken else ""
        head.append(f"{tile.ctype} *const {tile.name} = ({tile.ctype} *)hyad_shared_rows{behind};")
        taken.append(tile.apart)
    head += [
        f"for (long long {first} = {thread} - {lane}; {first} < {count}; {first} += {step}) {{",
        f"    const unsigned {rows} = hyad_rows({count} - {first});",
        *("    " + text for text in indices),
        *(f"    const long long {tile.at} = {place};" for tile, place in zip(tiles, places)),
        *("    " + tile.moved(rows) for tile in tiles if not tile.given),
    ]
    for tile in tiles:
        const = "" if tile.given else "const "
        where = f"{tile.apart} ? {tile.name} + threadIdx.x*{tile.apart} : {tile.array} + {tile.at}"
        head.append(f"    {const}{tile.ctype} *const {tile.row} = {where};")
    head += ["    __syncwarp();", f"    if ({lane} < {rows}) {{"]
    tail = ["    }", "    __syncwarp();", *("    " + tile.moved(rows) for tile in tiles if tile.given), "}"]
    return head, tail


def functions_of(tiles: Iterable[Tile]) -> list[str]:
    """The functions that a kernel with some tiles calls."""
    kinds = {(t.given, bool(t.at), t.bulk) for t in tiles}
    bulk = [text for text, given in ((FETCH, False), (SEND, True)) if (given, False, True) in kinds]
    texts = ((TAKE, (False, False)), (GATHER, (False, True)), (GIVE, (True, False)), (ADD, (True, True)))
    single = [text for text, kind in texts if (*kind, False) in kinds]
    return [*([ROWS] if kinds else []), *([BULK] if bulk else []), *bulk, *single]


def fitting(tiles: Sequence[Tile], threads: int, folds: int = 0) -> list[Tile]:
    """Those tiles that there is room for in blocks of so many threads, which fold so many values: of what is written
    first, since a cache brings together what is read; wide ones first."""
    left, found = (ROOM - FOLD * folds) // threads, []
    for tile in sorted(tiles, key=lambda t: (not t.given, -t.width)):
        if tile.width >= LEAST and tile.bytes <= left and on(NAME):
            left -= tile.bytes
            found.append(tile)
    return sorted(found, key=tiles.index)


def blocks_for(tiles: Sequence[Tile], threads: int, folds: int = 0) -> tuple[int, list[Tile]]:
    """The tiles that there is room for, in blocks of so many threads; of half as many where these have room for all
    that is written, and those not."""
    found, smaller = fitting(tiles, threads, folds), fitting(tiles, threads // 2, folds)
    written = [t for t in tiles if t.given and t.width >= LEAST]
    if not folds and all(t in smaller for t in written) and not all(t in found for t in written):
        return threads // 2, smaller
    return threads, found


def by_warps(
    tiles: Sequence[Tile],
    threads: int,
    counts: tuple[str, str, str],
    names: tuple[str, str, str, str, str],
    indices: Sequence[str] = (),
    found: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """What stands before and behind what a thread does with its row, in blocks of so many threads. ``counts``: the
    number of the thread, how many there are, and how many rows; ``names``: the first row of its warp, its place there,
    how many rows that has, what knows of its rows that they have arrived, and how often they have. ``indices`` are
    variables of the rows that are gathered, and ``found`` sets them where a thread has an iteration."""
    (thread, step, count), (first, lane, rows, arrived, turn) = counts, names
    fetched = [tile for tile in tiles if tile.bulk and not tile.given]
    sent = any(tile.bulk and tile.given for tile in tiles)
    begun, start, after = f"&{arrived}[threadIdx.x/32]", f"({thread} - {lane})", f"({first} + {step})"
    taken = ["    " + tile.moved(first, rows) for tile in tiles if not (tile.given or tile.at or tile.bulk)]
    if fetched:
        taken.insert(0, f"    hyad_arrived({begun}, {turn}++ & 1);")
    gathered = ["    " + tile.moved(first, rows) for tile in tiles if tile.at and not tile.given]
    if indices:
        before = ["    __syncwarp();"] if taken else []  # the indices may be in a tile
        before.append(f"    long long {', '.join(f'{at} = -1' for at in indices)};")
        before += [f"    if ({lane} < {rows}) {{", *("        " + text for text in found), "    }"]
        gathered[:0] = before
    head = [f"const unsigned {lane} = threadIdx.x & 31u;"]
    if fetched:
        head.append(f"__shared__ unsigned long long {arrived}[{threads // 32}];")
        head.append(f"hyad_begin({begun}, {len(fetched)});")
        head += [tile.moved(start, f"hyad_rows({count} - {start})", begun) for tile in fetched]
        head.append(f"unsigned {turn} = 0;")
    head += [
        f"for (long long {first} = {thread} - {lane}; {first} < {count}; {first} += {step}) {{",
        f"    const unsigned {rows} = hyad_rows({count} - {first});",
        *taken,
        *gathered,
        *(["    hyad_sent();"] if sent else []),
        "    __syncwarp();",
        f"    if ({lane} < {rows}) {{",
    ]
    tail = [
        "    }",
        *(["    hyad_made();"] if sent or fetched else []),
        "    __syncwarp();",
        *("    " + tile.moved(first, rows) for tile in tiles if tile.given),
        *("    " + tile.moved(after, f"hyad_rows({count} - {after})", begun) for tile in fetched),
        "}",
        *(["hyad_sent();"] if sent else []),
    ]
    return head, tail


def row_width(var: Var, levels: int) -> int:
    """The elements behind the first ``levels`` subscripts of an array; 0 where their number is not known."""
    dims = var.type.dims if isinstance(var.type, Arr) else ()
    known = 0 < levels <= len(dims) or not levels
    return (
        math.prod(int(d.value) for d in dims[levels:]) if known and all(type(d) is Const for d in dims[levels:]) else 0
    )


def only_rows(program: Program, var: Var, at: Sequence[Var]) -> bool:
    """Whether an array is read at the subscripts ``at``, and others behind them, and is nowhere else."""
    for bind in all_binds(program.body):
        for k, a in enumerate(atoms_of(bind.op)):
            if a is not var:
                continue
            if (
                type(bind.op) is not Prim
                or bind.op.name != "get"
                or k
                or not same_atoms(bind.op.args[1 : len(at) + 1], at)
            ):
                return False
        if any(r is var for block in blocks_of(bind.op) for r in block.results):
            return False
    return not any(r is var for r in program.body.results)


def mostly_read(program: Program, var: Var, at: Sequence[Atom]) -> bool:
    """Whether at least half of the elements behind the subscripts ``at`` are read, whatever the data are: not in
    branches alone."""
    subs: dict[Var, tuple[Atom, ...]] = {var: ()}  # of the array and its rows
    found: set[tuple[int, ...]] = set()

    def whole(block: Block) -> bool:
        for bind in block.binds:
            op = bind.op
            if type(op) is Prim and op.name == "get" and op.args[0] in subs:
                here = (*subs[op.args[0]], *op.args[1:])
                if not same_atoms(here[: len(at)], at[: len(here)]):
                    continue
                if isinstance(bind.vars[0].type, Arr):
                    subs[bind.vars[0]] = here
                elif all(type(a) is Const for a in here[len(at) :]):
                    found.add(tuple(int(a.value) for a in here[len(at) :]))
                else:
                    return True
            elif any(a in subs for a in atoms_of(op) if type(a) is Var) or type(op) is Loop and whole(op.body):
                return True
        return any(r in subs for r in block.results if type(r) is Var)

    return whole(program.body) or 2 * len(found) >= row_width(var, len(at))


def row_subscripts(program: Program, var: Var, indices: Sequence[Var]) -> tuple[Var, ...]:
    """The first subscripts of an array, where they are some of these indices, one by one: those of the row that all
    that reads it is in, if ``only_rows`` says so."""
    for bind in all_binds(program.body):
        if type(bind.op) is Prim and bind.op.name == "get" and bind.op.args[0] is var:
            subs = bind.op.args[1:]
            many = next((k for k, a in enumerate(subs) if a not in indices or a in subs[:k]), len(subs))
            return tuple(subs[:many])
    return ()


def read_again(block: Block, arrays: set[Atom], depth: int = 0) -> bool:
    """Whether loops inside loops of a block read elements of some arrays, or of their rows: each several times."""
    arrays = set(arrays)
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and op.name == "get" and op.args[0] in arrays:
            if isinstance(bind.vars[0].type, Arr):
                arrays.add(bind.vars[0])
            elif depth > 1:
                return True
        elif type(op) is Loop and read_again(op.body, arrays, depth + 1):
            return True
    return False


def terms_of(block: Block, states: Sequence[Var]) -> dict[Var, list[tuple[int, ...]]]:
    """Which elements of rows of an array, whose states these are, a block adds to outside of loops and branches, by the
    rows' index: those indices of whose rows at least half of the elements are added to, each once."""
    found: dict[Var, list[tuple[int, ...]]] = {}
    whole: set[Atom] = set()  # indices of rows that are added to in another way
    for bind in block.binds:
        op = bind.op
        if type(op) is Prim and op.name == "add-at" and bind.vars[0] in states and type(op.args[1]) is Var:
            places = op.args[2:-1]
            if len(op.args) == 2 + states[0].type.rank and all(type(a) is Const for a in places):
                found.setdefault(op.args[1], []).append(tuple(int(a.value) for a in places))
            else:
                whole.add(op.args[1])
    least = row_width(states[0], 1) / 2 if states else 0
    return {k: at for k, at in found.items() if k not in whole and len(at) == len(set(at)) >= least}


def indices_of(program: Program, var: Var) -> list[Var]:
    """The variables that are the first subscript of an array where it is read."""
    reads = [b.op.args for b in all_binds(program.body) if type(b.op) is Prim and b.op.name == "get"]
    return list(dict.fromkeys(args[1] for args in reads if args[0] is var and type(args[1]) is Var))
