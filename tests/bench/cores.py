"""How far apart two processors are: what a line of the cache takes to the other one and back.

A virtual machine may have its processors beside each other at one time and far apart at another; threads that share
what they read and write are then not as fast, and two-thread rows are only comparable where this number is the same.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from measure import CC

TURNS = 200_000

SOURCE = """
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static _Atomic long turn;

static void *other(void *nothing)
{
    for (long k = 1; k < 2*TURNS; k += 2) {
        while (atomic_load_explicit(&turn, memory_order_acquire) != k) {}
        atomic_store_explicit(&turn, k + 1, memory_order_release);
    }
    return nothing;
}

int main(void)
{
    pthread_t thread;
    struct timespec a, b;
    if (pthread_create(&thread, NULL, other, NULL)) return 1;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (long k = 1; k < 2*TURNS; k += 2) {
        atomic_store_explicit(&turn, k, memory_order_release);
        while (atomic_load_explicit(&turn, memory_order_acquire) != k + 1) {}
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    pthread_join(thread, NULL);
    printf("%f\\n", (1e9*(b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec))/TURNS);
    return 0;
}
"""


def there_and_back(folder: Path) -> float:
    """Nanoseconds, by a program that is compiled in ``folder``."""
    source, program = folder / "cores.c", folder / "cores"
    source.write_text(SOURCE)
    subprocess.run([CC, "-O2", f"-DTURNS={TURNS}L", str(source), "-o", str(program), "-pthread"], check=True)
    return float(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)
