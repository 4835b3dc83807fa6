"""Plans written by hand, with a step of each kind, and what they compute."""

from __future__ import annotations

import numpy as np

from hyad.codegen.launches import (
    At,
    Choose,
    Clear,
    Copy,
    CudaProgram,
    Gemm,
    Launch,
    Memory,
    Param,
    Repeat,
    Require,
    Scalar,
    Swap,
    While,
    ceiling,
)

STEPS = """\
extern "C" __global__ void walk_times(const double *__restrict__ s, double a, long long n, long long k,
    double *__restrict__ t)
{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i < n)
        t[i] = a*s[i] + (double)k;
}

extern "C" __global__ void walk_above(const double *__restrict__ s, int *__restrict__ flag)
{
    *flag = s[0] > 100.0;
}

extern "C" __global__ void walk_halve(double *__restrict__ s, long long n)
{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i < n)
        s[i] *= 0.5;
}

extern "C" __global__ void walk_add(const double *__restrict__ s, double *__restrict__ out, long long n,
    unsigned long long *__restrict__ status)
{
    const long long i = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    out[i] += s[i];
    if (!(s[i] >= 0.0))
        atomicCAS(status, 0ULL, 2ULL);
}
"""
BLOCKS = ceiling("n", 128)
STEPS_MEMORY = (
    Memory("v", "real", ("n",), "param"),
    Memory("out", "real", ("n",), "result"),
    Memory("s", "real", ("n",)),
    Memory("t", "real", ("n",)),
    Memory("flag", "bool", ()),
    Memory("status", "word", (2,)),
)
HALVE = Launch("walk_halve", BLOCKS, 128, (At("s"), "n"))
#: Each of ``m`` times ``s = a*s + k``, halved until its first element is at most 100; once more where n > 3 or that
#: is above 100, which it is not.
WALK = CudaProgram(
    "walk",
    (Param("v", "real", ("n",)), Param("a", "real"), Param("m", "int")),
    (STEPS_MEMORY[1],),
    ("n",),
    STEPS_MEMORY,
    (
        Require(("<", "n", 1000), 1),
        Copy(At("s"), At("v"), "n"),
        Repeat(
            "m",
            "k",
            (Launch("walk_times", BLOCKS, 128, (At("s"), Scalar("a", "real"), "n", "k", At("t"))), Swap("s", "t")),
        ),
        While((Launch("walk_above", 1, 1, (At("s"), At("flag"))),), At("flag"), (HALVE,)),
        Choose(("<", 3, "n"), (HALVE,)),
        Choose(At("flag"), (HALVE, HALVE), (Clear(At("out"), "n"),)),
        Launch("walk_add", BLOCKS, 128, (At("s"), At("out"), "n", At("status")), form="(map + out s)"),
    ),
    ("walk_times", "walk_above", "walk_halve", "walk_add"),
    STEPS,
    "status",
    (("shape", "too long", None), ("shape", "negative", None)),
)


def walked(v: np.ndarray, a: float, m: int) -> np.ndarray:
    for k in range(m):
        v = a * v + k
    while v[0] > 100:
        v = v / 2
    return v / 2 if len(v) > 3 else v


PRODUCT = """\
extern "C" __global__ void both_product(const {0} *__restrict__ a, const {0} *__restrict__ b, {0} *__restrict__ c,
    long long m, long long n, long long k)
{{
    const long long at = (long long)blockIdx.x*blockDim.x + threadIdx.x;
    if (at >= m*n)
        return;
    {0} sum = 0;
    for (long long l = 0; l < k; l++)
        sum += a[l*m + at/n]*b[(at % n)*k + l];
    c[at] += sum;
}}
"""


def product(dtype: str) -> CudaProgram:
    """``a' b'`` of a (k x m) and b (n x k), added to zeros."""
    memory = (
        Memory("a", "real", ("k", "m"), "param"),
        Memory("b", "real", ("n", "k"), "param"),
        Memory("c", "real", ("m", "n"), "result"),
    )
    sizes = ("m", "n", "k")
    launch = Launch("both_product", ceiling(("*", "m", "n"), 128), 128, (At("a"), At("b"), At("c"), *sizes))
    gemm = Gemm(*sizes, At("a"), "m", True, At("b"), "k", True, At("c"), "n", True, launch)
    return CudaProgram(
        "both",
        (Param("a", "real", ("k", "m")), Param("b", "real", ("n", "k"))),
        memory[2:],
        sizes,
        memory,
        (Clear(At("c"), ("*", "m", "n")), gemm),
        ("both_product",),
        PRODUCT.format("double" if dtype == "f64" else "float"),
        dtype=dtype,
    )
