"""The array libraries on the AD suite, each through its own call: one process for a library, an objective and a size.

Run as ``python adpeers.py PEER OBJECTIVE SIZE DERIVATIVE LIBRARY ROUNDS BUDGET``: prepare, check against the reference
on standard input, time by turns with the hand-written primal in LIBRARY, print one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from adsuite import OBJECTIVES, Arrays, Objective, Point, bank_of, problem_of
from measure import Contender, Native, PythonCall, alternate
from reference import error

SEED = 1


class Jax(Arrays):
    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        self.jax, self.constant = jax, jnp.asarray
        for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "einsum", "stack", "concatenate", "sum"):
            setattr(self, name, getattr(jnp, name))
        self.largest, self.least = jnp.max, jnp.min
        self.sigmoid = jax.nn.sigmoid

    def scan(self, step: Any, start: Any, items: Any) -> Any:
        return self.jax.lax.scan(step, start, self.constant(items))


class Autograd(Arrays):
    def __init__(self) -> None:
        import autograd.numpy as anp

        for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "einsum", "stack", "concatenate", "sum"):
            setattr(self, name, getattr(anp, name))
        self.largest, self.least = anp.max, anp.min
        self.constant = np.asarray
        self.sigmoid = lambda a: 0.5 * (anp.tanh(0.5 * a) + 1)


class Torch(Arrays):
    def __init__(self) -> None:
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "einsum", "sigmoid"):
            setattr(self, name, getattr(torch, name))
        self.constant = torch.as_tensor
        self.stack = lambda parts, axis=0: torch.stack(parts, dim=axis)
        self.concatenate = lambda parts, axis=0: torch.cat(parts, dim=axis)
        self.sum = lambda a, axis=None: torch.sum(a) if axis is None else torch.sum(a, dim=axis)
        self.largest = lambda a, axis: torch.amax(a, dim=axis)
        self.least = lambda a, axis: torch.min(a, dim=axis).values

    def scan(self, step: Any, start: Any, items: Any) -> Any:
        return Arrays.scan(step, start, self.constant(items))


class Casadi(Arrays):
    """NumPy's arrays of CasADi's scalar expressions."""

    def __init__(self) -> None:
        import casadi

        self.casadi, self.constant = casadi, np.asarray
        for name in ("einsum", "concatenate", "sum"):
            setattr(self, name, getattr(np, name))
        greater, less = (np.frompyfunc(f, 2, 1) for f in (casadi.fmax, casadi.fmin))
        self.largest = lambda a, axis: greater.reduce(a, axis=axis)
        self.least = lambda a, axis: less.reduce(a, axis=axis)

    @staticmethod
    def stack(parts: list[Any], axis: int = 0) -> Any:
        if all(isinstance(p, np.ndarray) for p in parts):
            return np.stack(parts, axis)
        made = np.empty(len(parts), object)
        for k, p in enumerate(parts):
            made[k] = p
        return made


def jax_call(objective: Objective, point: Point, derivative: str) -> Callable[[], Any]:
    m = Jax()
    jax = m.jax
    if derivative == "blocks":
        from adsuite import residuals

        def one(p: Any, feature: Any) -> Any:
            return residuals(m, p[None], feature[None])[0]

        compiled = jax.jit(jax.vmap(jax.jacrev(one)))
        rows, features = (m.constant(a) for a in rows_of(point))
        return lambda: jax.block_until_ready(compiled(rows, features))
    if derivative == "jacobian":
        if "us" in point:
            raise NotImplementedError("the pose's columns only")
        compute = jax.jit(jax.jacfwd(lambda theta: objective.primal(m, *{**point, "theta": theta}.values())))
        theta = m.constant(point["theta"])
        return lambda: jax.block_until_ready(compute(theta))
    names, active = list(point), tuple(list(point).index(w) for w in objective.wrt)
    fixed = {k: v for k, v in point.items() if k not in objective.wrt}

    def primal(*moving: Any) -> Any:
        values = {**fixed, **dict(zip(objective.wrt, moving))}
        return objective.primal(m, *(values[name] for name in names))

    which = tuple(range(len(active)))
    if derivative == "diagonal":

        def compute(c: Any) -> Any:
            return jax.jvp(jax.grad(primal), (c,), (c * 0 + 1,))[1]

        compiled = jax.jit(compute)
    else:
        compiled = jax.jit(jax.grad(primal, argnums=which))
    values = [m.constant(point[w]) for w in objective.wrt]
    return lambda: jax.block_until_ready(compiled(*values))


def autograd_call(objective: Objective, point: Point, derivative: str) -> Callable[[], Any]:
    import autograd

    m = Autograd()
    if derivative == "jacobian":
        raise NotImplementedError("one backward pass for each residual")
    if derivative == "blocks":
        from adsuite import residuals

        rows, features = rows_of(point)
        # the sum over observations has the rows' blocks as its gradient: one pass for each of the two residuals
        by = [autograd.grad(lambda p, k=k: m.sum(residuals(m, p, features)[:, k])) for k in range(2)]
        return lambda: np.stack([g(rows) for g in by], axis=1)
    names = list(point)
    fixed = {k: v for k, v in point.items() if k not in objective.wrt}

    def primal(*moving: Any) -> Any:
        values = {**fixed, **dict(zip(objective.wrt, moving))}
        return objective.primal(m, *(values[name] for name in names))

    values = [np.asarray(point[w], float) for w in objective.wrt]
    if derivative == "diagonal":
        product = autograd.grad(lambda c: m.sum(autograd.grad(primal)(c)))  # the Hessian has its diagonal only
        return lambda: product(values[0])
    derive = autograd.grad(primal, tuple(range(len(values))))
    return lambda: derive(*values)


def torch_call(objective: Objective, point: Point, derivative: str) -> Callable[[], Any]:
    import torch

    m = Torch()
    if derivative == "jacobian":
        raise NotImplementedError("one backward pass for each residual")
    if derivative == "blocks":
        from adsuite import residuals

        rows, features = (torch.as_tensor(a) for a in rows_of(point))

        def call() -> Any:
            p = rows.clone().requires_grad_(True)
            y = residuals(m, p, features)
            parts = [torch.autograd.grad(y[:, k].sum(), p, retain_graph=k == 0)[0] for k in range(2)]
            return torch.stack(parts, dim=1)

        return call
    fixed = {k: torch.as_tensor(v) if np.ndim(v) else v for k, v in point.items() if k not in objective.wrt}

    def call() -> Any:
        moving = {w: torch.as_tensor(point[w], dtype=torch.float64).requires_grad_(True) for w in objective.wrt}
        y = objective.primal(m, *(moving[name] if name in moving else fixed[name] for name in point))
        if derivative == "diagonal":
            first = torch.autograd.grad(y, list(moving.values()), create_graph=True)[0]
            return torch.autograd.grad(first.sum(), list(moving.values()))[0]
        return torch.autograd.grad(y, list(moving.values()))

    return call


def casadi_call(objective: Objective, point: Point, derivative: str) -> Callable[[], Any]:
    m = Casadi()
    casadi = m.casadi
    if derivative != "gradient":
        raise NotImplementedError("gradients only: its expressions are scalars here")
    wrt = objective.wrt
    sizes = [np.size(point[w]) for w in wrt]
    x = casadi.SX.sym("x", sum(sizes))
    elements = np.array([x[k] for k in range(sum(sizes))], dtype=object)
    parts = dict(zip(wrt, np.split(elements, np.cumsum(sizes)[:-1])))
    moving = {w: part.reshape(np.shape(point[w])) for w, part in parts.items()}
    y = objective.primal(m, *(moving.get(name, given) for name, given in point.items()))
    f = casadi.Function("f", [x], [casadi.densify(casadi.gradient(y, x))])
    at = casadi.DM(np.concatenate([np.ravel(point[w]) for w in wrt]))
    return lambda: f(at)


def rows_of(point: Point) -> tuple[np.ndarray, np.ndarray]:
    """Camera, point and weight of each observation, and the features."""
    parts = [point["cameras"][point["seen_by"]], point["points"][point["point_of"]], point["weights"][:, None]]
    return np.concatenate(parts, axis=1), point["features"]


PEERS = {"jax": jax_call, "torch": torch_call, "autograd": autograd_call, "casadi": casadi_call}
TITLES = {"jax": "JAX", "torch": "PyTorch", "autograd": "autograd", "casadi": "CasADi"}


def flat(result: Any) -> np.ndarray:
    if isinstance(result, (tuple, list)):
        return np.concatenate([flat(r) for r in result])
    return np.array(result.detach() if hasattr(result, "detach") else result, float).ravel()


def main(peer: str, name: str, size: str, derivative: str, library: str, rounds: str, budget: str) -> None:
    objective = next(o for o in OBJECTIVES if o.name == name)
    point = objective.point(np.random.default_rng(SEED), **json.loads(size))
    expected = np.frombuffer(sys.stdin.buffer.read())
    __import__(peer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    call = PEERS[peer](objective, point, derivative)
    first = flat(call())
    prepare = time.perf_counter() - start
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if derivative == "blocks":  # the weights' own diagonal is no work
        first = np.concatenate([first, -2 * point["weights"]])
    primal = problem_of(objective, json.loads(size), point, "primal")
    yardstick = Native(Contender("hand", "", "", "", work=4_000_000, library=library), primal, 0, bank_of(point))
    timings = alternate({"primal": yardstick, peer: PythonCall(lambda row: call(), 1)}, int(rounds), float(budget))
    t = timings[peer]
    found = {"nanoseconds": t.nanoseconds, "wall_ratio": t.wall_ratio, "cpu_ratio": t.cpu_ratio}
    print(json.dumps({**found, "prepare": prepare, "kilobytes": kilobytes, "error": error(first, expected)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
