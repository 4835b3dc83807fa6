"""Elements that a thread reads ahead: those of its next places, before it computes the first.

A loop over the elements of a vector waits for memory as long as it computes little, and a compiler does not read the
next element before it has written this one, nor beyond a branch, as there is one in ``exp``. One element of eight bytes
on the way for each thread is half of what memory of 5 TB/s needs for a sum. So each thread has ``AHEAD`` places at a
time, a step of the grid apart as before, and reads what it needs of all of them first::

    for (long long first = thread; first < n; first += 4*step) {
        double v_ahead[4];
        hyad_ahead(v_ahead, v, first, step, n);
        HYAD_UNROLL
        for (int k = 0; k < 4; k++) {
            const long long i = first + k*step;
            if (i < n) {
                t += exp(v_ahead[k]);
            }
        }
    }

The order of a thread's places is what it was, and so is every sum. Where a place has several indices, no place divides:
a thread divides before its first one, and the quotients are carried, ``step`` places further at a time::

    long long i = thread/m;
    const long long i_step = step/m;
    ..          if (at < total) {
                    if (at - i*m >= m) i++;
                    const long long j = at - i*m;
                    ..
                }
                i += i_step;

Such threads have ``ROUNDS`` times as many places, to divide less often. A team of threads that shares the pieces of a
long row reads these ahead in the same way, ``team`` elements apart. Not for bodies that are long (``LIGHT``), or have
loops: they have work enough to hide what they wait for, and would be four times as long. Nor for those that read more
of neighbours than of the element itself: these need the indices of each place, and take the registers of many threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from hyad.core import Block, Check, If, Prim, Var, all_binds
from hyad.passes.spread import work
from hyad.program.journal import on

NAME = "ahead"  # of the optimisation, to switch it off
AHEAD = 4  # places of a thread at a time
ROUNDS = 4  # of that many places for a thread that divides before its first, to carry indices from place to place
ARRAYS = 4  # of which so many arrays are read ahead: 32 registers
OF_ROWS = 2  # and of those that a team shares so many: a thread of a team has 80 registers
LIGHT = 100.0  # the work of a body, in additions, up to which it waits for memory

UNROLL = """\
#ifdef __CUDACC__
#define HYAD_UNROLL _Pragma("unroll")
#else
#define HYAD_UNROLL
#endif
"""
READ = f"""\
/* the elements of a thread's next places */
template <class T>
static __device__ inline void hyad_ahead(T *to, const T *__restrict__ from, long long first, long long step,
    long long n) {{
  HYAD_UNROLL
  for (int k = 0; k < {AHEAD}; k++)
    if (first + k*step < n) to[k] = from[first + k*step];
}}
"""


def light(body: Block) -> bool:
    """Whether a body is so little work that it waits for memory."""
    if not on(NAME):
        return False
    total = 0.0
    for bind in all_binds(body):
        if type(bind.op) is Prim:
            total += work(bind.op)
        elif type(bind.op) not in (If, Check):
            return False
    return total <= LIGHT


def elsewhere(body: Block, read: Sequence[Var]) -> int:
    """How many elements a body reads of other arrays, which it waits for anyway, four times as many at once."""
    return sum(type(b.op) is Prim and b.op.name == "get" and b.op.args[0] not in read for b in all_binds(body))


def heads(thread: str, step: str, total: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The head of the loop over a thread's places, and what stands in it after what is read. ``names``: the first
    place, its number among those that come at once, and the place."""
    first, k, place = names
    loop = f"for (long long {first} = {thread}; {first} < {total}; {first} += {AHEAD}*{step}) {{"
    inner = [
        "    HYAD_UNROLL",
        f"    for (int {k} = 0; {k} < {AHEAD}; {k}++) {{",
        f"        const long long {place} = {first} + {k}*{step};",
        f"        if ({place} < {total}) {{",
    ]
    return loop, inner
