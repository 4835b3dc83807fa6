"""The tools that run a model's Python, on recursion and loops: PyTorch (eager), JAX where it can, autograd.

Run as ``python recursion_peers.py PEER WALK COUNT PRIMAL GRADIENT ROUNDS BUDGET TREES``: COUNT points of the walk, by
turns with the hand-written code in the shared objects PRIMAL and GRADIENT. Prints one line of JSON.

JAX has no recursion over data: each tree and each depth is a program of its own, compiled ahead, and none of that is
in the time of a call. Nor has it a reverse mode through ``while``: there its derivative is forward mode.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measure import PythonCall, alternate
from recursion import WALKS, Passes, Walk, corpus, measured, points_of
from reference import error

Call = Callable[[int], Any]
POINTS = {"torch": 8, "jax": 3, "autograd": 8}  # how many; JAX takes seconds to compile each
TITLES = {"torch": "PyTorch, eager (call)", "jax": "JAX (call)", "autograd": "autograd (call)"}


def torch_calls(walk: Walk, points: list[tuple[Any, ...]]) -> tuple[Call, Call]:
    import torch

    torch.set_num_threads(1)
    plain, leaves, tracked = [], [], []
    for point in points:
        tensors = [torch.tensor(a, dtype=torch.float64) if on else a for a, (_, _, on) in zip(point, walk.inputs)]
        copies = [t.clone().requires_grad_() if on else t for t, (_, _, on) in zip(tensors, walk.inputs)]
        plain.append(tensors)
        tracked.append(copies)
        leaves.append([t for t, (_, _, on) in zip(copies, walk.inputs) if on])

    def primal(k: int) -> Any:
        with torch.no_grad():
            return walk.primal(torch, *plain[k])

    return primal, lambda k: torch.autograd.grad(walk.primal(torch, *tracked[k]), leaves[k])


def autograd_calls(walk: Walk, points: list[tuple[Any, ...]]) -> tuple[Call, Call]:
    import autograd
    import autograd.numpy as anp

    def primal(*arguments: Any) -> Any:
        return walk.primal(anp, *arguments)

    active = tuple(k for k, (_, _, on) in enumerate(walk.inputs) if on)
    gradient = autograd.grad(primal, active)
    return lambda k: primal(*points[k]), lambda k: gradient(*points[k])


def jax_calls(walk: Walk, points: list[tuple[Any, ...]]) -> tuple[Call, Call]:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    loops = {"kepler": jax_kepler, "growth": jax_growth}
    primal, operator = loops.get(walk.name, walk.primal), jax.jacfwd if walk.name in loops else jax.grad
    values, gradients, given = [], [], []
    for point in points:
        active = [jnp.asarray(a) for a, (_, _, on) in zip(point, walk.inputs) if on]

        def value(*numbers: Any, point: Any = point) -> Any:
            rest = iter(numbers)
            return primal(jnp, *(next(rest) if on else a for a, (_, _, on) in zip(point, walk.inputs)))

        if walk.name in loops and values:
            values.append(values[0])
            gradients.append(gradients[0])
        else:
            values.append(jax.jit(value))
            gradients.append(jax.jit(operator(value, argnums=tuple(range(len(active))))))
        given.append(active)
    for k, a in enumerate(given):  # compile
        values[k](*a), gradients[k](*a)
    ready = jax.block_until_ready
    return lambda k: ready(values[k](*given[k])), lambda k: ready(gradients[k](*given[k]))


def jax_kepler(m: Any, mean: Any, e: Any) -> Any:
    from jax import lax

    def body(state: Any) -> Any:
        x, _ = state
        step = (x - e * m.sin(x) - mean) / (1 - e * m.cos(x))
        return x - step, step

    return lax.while_loop(lambda state: abs(state[1]) > 1e-10, body, (mean, m.ones_like(mean)))[0]


def jax_growth(m: Any, r: Any, k: Any, y: Any) -> Any:
    from jax import lax

    def body(state: Any) -> Any:
        y, t = state
        slope = r * y * (1 - y / k)
        h = 0.01 / (1 + abs(slope))
        return y + h * slope, t + h

    return lax.while_loop(lambda state: state[1] < 10, body, (y, m.zeros_like(y)))[0]


CALLS = {"torch": torch_calls, "jax": jax_calls, "autograd": autograd_calls}


def flat(result: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(r, float)) for r in result])


class Pass(PythonCall):
    """One pass over all points."""

    def __init__(self, call: Call, points: int):
        super().__init__(lambda _: [call(k) for k in range(points)], 1)


def main(peer: str, name: str, count: str, primal: str, gradient: str, rounds: str, budget: str, trees: str) -> None:
    __import__(peer)
    sys.setrecursionlimit(100_000)
    walk = next(w for w in WALKS if w.name == name)
    every = points_of(walk, corpus(Path(trees) if trees else None)[0])
    points = every[:: -(-len(every) // int(count))]
    by_hand = {"hand": Passes(primal, walk, points, False), "hand gradient": Passes(gradient, walk, points, True)}
    expected = by_hand["hand gradient"].results()
    start = time.perf_counter()
    value, slope = CALLS[peer](walk, points)
    wrong = max(error(flat(slope(k)), expected[k]) for k in range(len(points)))
    prepare = time.perf_counter() - start
    calls = {"primal": Pass(value, len(points)), "gradient": Pass(slope, len(points))}
    timings = alternate({**by_hand, **calls}, int(rounds), float(budget))
    row = measured(TITLES[peer], timings["primal"], timings["gradient"], timings["hand gradient"], len(points))
    row.prepare = prepare
    print(json.dumps({**vars(row), "error": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
