"""The other tools on the AD suite: one process for a tool, an objective and a size. Array libraries go through their
own calls; ``adcpp.py`` has those that are C++.

Run as ``python adpeers.py PEER OBJECTIVE SIZE DERIVATIVE LIBRARY ROUNDS BUDGET LIMIT``: prepare within LIMIT seconds,
check against the reference on standard input, time by turns with the hand-written primal in LIBRARY, print one line of
JSON.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import adcpp
import adenzyme
from adsuite import OBJECTIVES, Arrays, Objective, Point, Size, bank_of, gmm_constant, powers_of_places, problem_of
from measure import FLAGS, Contender, Native, PythonCall, alternate, build
from reference import error

SEED = 1
SLOW = 3.0  # seconds of a call from which on three rounds are enough


class Jax(Arrays):
    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        self.jax, self.constant = jax, jnp.asarray
        for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "einsum", "stack", "concatenate", "sum"):
            setattr(self, name, getattr(jnp, name))
        self.largest, self.least = jnp.max, jnp.min
        self.sigmoid, self.log_sum_exp = jax.nn.sigmoid, jax.nn.logsumexp

    def squared_distances(self, points: Any, centres: Any) -> Any:
        return by_product(self, points, centres)

    def scan(self, step: Any, start: Any, items: Any) -> Any:
        return self.jax.lax.scan(step, start, self.constant(items))


def by_product(m: Any, points: Any, centres: Any) -> Any:
    """The squares' sums by the binomial formula: most of the work is a product of matrices."""
    lengths = m.sum(points * points, axis=1)[:, None], m.sum(centres * centres, axis=1)[None]
    return lengths[0] - 2 * m.einsum("nd,kd->nk", points, centres) + lengths[1]


class Autograd(Arrays):
    def __init__(self) -> None:
        import autograd.numpy as anp
        from autograd.scipy.special import logsumexp

        for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "einsum", "stack", "concatenate", "sum"):
            setattr(self, name, getattr(anp, name))
        self.largest, self.least = anp.max, anp.min
        self.constant, self.log_sum_exp = np.asarray, logsumexp
        self.sigmoid = lambda a: 0.5 * (anp.tanh(0.5 * a) + 1)

    def squared_distances(self, points: Any, centres: Any) -> Any:
        return by_product(self, points, centres)


class Torch(Arrays):
    def __init__(self) -> None:
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "einsum", "sigmoid"):
            setattr(self, name, getattr(torch, name))
        self.log_sum_exp = torch.logsumexp
        self.constant = torch.as_tensor
        self.stack = lambda parts, axis=0: torch.stack(parts, dim=axis)
        self.concatenate = lambda parts, axis=0: torch.cat(parts, dim=axis)
        self.sum = lambda a, axis=None: torch.sum(a) if axis is None else torch.sum(a, dim=axis)
        self.largest = lambda a, axis: torch.amax(a, dim=axis)
        self.least = lambda a, axis: torch.min(a, dim=axis).values

    def squared_distances(self, points: Any, centres: Any) -> Any:
        return by_product(self, points, centres)

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
        f, at, seeds = posed(objective, m, point)
        push = jax.vmap(lambda *seed: jax.jvp(f, at, seed)[1], out_axes=-1)
        compute = jax.jit(lambda *at: push(*map(m.constant, seeds)))
        return lambda: parts_of(jax.block_until_ready(compute(*at)))
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
        f, at, seeds = posed(objective, m, point)
        push = autograd.differential_operators.make_jvp(lambda moving: f(*moving))(at)
        return lambda: parts_of(np.stack([push(seed)[1] for seed in zip(*seeds)], axis=-1))
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
        f, at, seeds = posed(objective, m, point)
        push = torch.func.vmap(lambda *seed: torch.func.jvp(f, at, seed)[1], out_dims=-1)
        given = tuple(map(m.constant, seeds))
        return lambda: parts_of(push(*given))
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


def posed(objective: Objective, m: Any, point: Point) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]:
    """A hand's residuals by what moves: the pose, and each point's own two coordinates, which are two columns for all;
    the point, and the directions, one after the other."""
    names = [name for name in ("theta", "us") if name in point]
    count = 26 + 2 * (len(names) - 1)
    theta = np.eye(count)[:, :26]
    us = [np.broadcast_to(np.eye(count)[:, None, 26:], (count, *point["us"].shape)).copy()] if "us" in point else []
    at = tuple(m.constant(point[name]) for name in names)
    return lambda *given: objective.primal(m, *{**point, **dict(zip(names, given))}.values()), at, (theta, *us)


def parts_of(columns: Any) -> Any:
    """The columns by the pose, then those by the points' own coordinates."""
    return columns if columns.shape[-1] == 26 else (columns[..., :26], columns[..., 26:])


def casadi_call(objective: Objective, point: Point, derivative: str) -> Callable[[], Any]:
    """Small scalar expressions where there is no loop over data; else expressions of matrices, and steps in a map."""
    import casadi

    if derivative == "blocks":
        rows, features = (casadi.DM(a.T) for a in rows_of(point))
        p, feature = casadi.SX.sym("p", 15), casadi.SX.sym("feature", 2)
        y = casadi_residual(casadi, p, feature)
        blocks = casadi.Function("blocks", [p, feature], [casadi.vec(casadi.jacobian(y, p).T)]).map(rows.shape[1])
        return lambda: np.array(blocks(rows, features)).T
    if derivative != "gradient":
        raise NotImplementedError("gradients and blocks only")
    made = CASADI.get(objective.name)
    if made is None:
        m, wrt = Casadi(), objective.wrt
        sizes = [np.size(point[w]) for w in wrt]
        x = casadi.SX.sym("x", sum(sizes))
        elements = np.array([x[k] for k in range(sum(sizes))], dtype=object)
        parts = dict(zip(wrt, np.split(elements, np.cumsum(sizes)[:-1])))
        moving = {w: part.reshape(np.shape(point[w])) for w, part in parts.items()}
        y = objective.primal(m, *(moving.get(name, given) for name, given in point.items()))
    else:
        x = casadi.MX.sym("x", sum(np.size(point[w]) for w in objective.wrt))
        at, moving = 0, {}
        for w in objective.wrt:  # a matrix is its transpose there: columns lie one after the other
            rows, columns = (np.shape(point[w])[0] if np.ndim(point[w]) > 1 else 1), np.shape(point[w])[-1]
            count = np.size(point[w])
            moving[w] = casadi.reshape(x[at : at + count], columns, count // columns if rows > 1 else 1)
            at += count
        y = made(casadi, **{**point, **moving})
    f = casadi.Function("f", [x], [casadi.densify(casadi.gradient(y, x))])
    at = casadi.DM(np.concatenate([np.ravel(point[w]) for w in objective.wrt]))
    return lambda: f(at)


def casadi_residual(casadi: Any, p: Any, feature: Any) -> Any:
    r, t = p[:3], casadi.norm_2(p[:3])
    u, v = r / t, p[11:14] - p[3:6]
    seen = casadi.cos(t) * v + casadi.sin(t) * casadi.cross(u, v) + (1 - casadi.cos(t)) * casadi.dot(u, v) * u
    flat = seen[:2] / seen[2]
    q = casadi.sumsqr(flat)
    return p[14] * (p[6] * (1 + p[9] * q + p[10] * q * q) * flat + p[7:9] - feature)


def casadi_log_sum_exp(casadi: Any, rows: list[Any]) -> Any:
    """Of as many rows, element by element."""
    top = rows[0]
    for row in rows[1:]:
        top = casadi.fmax(top, row)
    return top + casadi.log(sum(casadi.exp(row - top) for row in rows))


def casadi_gmm(casadi: Any, alphas: Any, means: Any, icf: Any, x: Any, gamma: float, m: float) -> Any:
    (d, k), n = means.shape, len(x)
    terms, points, prior = [], casadi.DM(x.T), 0
    for j in range(k):
        logs, below = icf[:d, j], icf[d:, j]
        root = casadi.diag(casadi.exp(logs))
        if d > 1:
            root = root + casadi.MX(casadi.sparsify(casadi.DM(np.tril(np.ones((d, d)), -1))).sparsity(), below)
        y = casadi.mtimes(root, points - casadi.repmat(means[:, j], 1, n))
        terms.append(alphas[j] + casadi.sum1(logs) - 0.5 * casadi.sum1(y * y))
        squares = casadi.sumsqr(casadi.exp(logs)) + casadi.sumsqr(below)
        prior = prior + 0.5 * gamma * gamma * squares - m * casadi.sum1(logs)
    likelihood = casadi.sum2(casadi_log_sum_exp(casadi, terms)) - n * casadi.logsumexp(alphas)
    return likelihood + prior + gmm_constant(d, k, n, gamma, m)


def casadi_lstm(
    casadi: Any,
    weight: Any,
    bias: Any,
    in_scale: Any,
    out_scale: Any,
    out_bias: Any,
    hidden: Any,
    cell: Any,
    text: Any,
) -> Any:
    """One step is a function, which ``mapaccum`` takes along the sequence."""
    count, b = hidden.shape
    state, moment, held = casadi.SX.sym("s", 2 * b, count), casadi.SX.sym("x", b), casadi.SX.sym("w", b, 8 * count)
    x, states = moment, []
    for i in range(count):
        w, a = (lambda k, i=i: held[:, 4 * i + k]), (lambda k, i=i: held[:, 4 * (count + i) + k])
        h, c = state[:b, i], state[b:, i]
        forget, enter = (1 / (1 + casadi.exp(-(w(k) * v + a(k)))) for k, v in ((0, x), (1, h)))
        leave, change = 1 / (1 + casadi.exp(-(w(2) * x + a(2)))), casadi.tanh(w(3) * h + a(3))
        c = c * forget + enter * change
        x = leave * casadi.tanh(c)
        states.append(casadi.vertcat(x, c))
    step = casadi.Function("step", [state, moment, held], [casadi.horzcat(*states), x])
    n = len(text) - 1
    start = casadi.DM(np.concatenate([hidden, cell], axis=1).T)
    parameters = casadi.repmat(casadi.reshape(casadi.vertcat(casadi.vec(weight), casadi.vec(bias)), b, 8 * count), 1, n)
    inputs = casadi.DM(text[:-1].T) * casadi.repmat(in_scale, 1, n)
    outs = step.mapaccum("steps", n)(start, inputs, parameters)[1]
    y = outs * casadi.repmat(out_scale, 1, n) + casadi.repmat(out_bias, 1, n)
    totals = casadi_log_sum_exp(casadi, casadi.vertsplit(y))
    targets = casadi.DM(text[1:].T)
    return -(casadi.dot(targets, y) - casadi.dot(casadi.sum1(targets), totals)) / (n * b)


def casadi_kmeans(casadi: Any, centres: Any, points: Any) -> Any:
    lengths, p = casadi.DM((points * points).sum(axis=1)).T, casadi.DM(points)
    k = centres.shape[1]
    rows = [casadi.sumsqr(centres[:, j]) - 2 * casadi.mtimes(p, centres[:, j]).T + lengths for j in range(k)]
    least = rows[0]
    for row in rows[1:]:
        least = casadi.fmin(least, row)
    return casadi.sum2(least)


def casadi_llsq(casadi: Any, x: Any, n: int) -> Any:
    signs, powers = powers_of_places(x.numel(), n)
    return 0.5 * casadi.sumsqr(casadi.DM(signs) - casadi.mtimes(casadi.DM(powers), x))


CASADI: dict[str, Callable[..., Any]] = {
    "gmm": casadi_gmm,
    "lstm": casadi_lstm,
    "kmeans": casadi_kmeans,
    "llsq": casadi_llsq,
    "lse": lambda casadi, x: casadi.logsumexp(x),
}


def rows_of(point: Point) -> tuple[np.ndarray, np.ndarray]:
    """Camera, point and weight of each observation, and the features."""
    parts = [point["cameras"][point["seen_by"]], point["points"][point["point_of"]], point["weights"][:, None]]
    return np.concatenate(parts, axis=1), point["features"]


def native_call(peer: str, objective: Objective, size: Size, point: Point, derivative: str, folder: Path) -> Native:
    """What can be called from C is timed from there. It makes what it needs at its first call."""
    if peer == "enzyme_ad":
        made, flags = adenzyme.contender(objective, size, point, derivative), FLAGS
    else:
        made, flags = adcpp.contender(peer, objective, size, point, derivative), adcpp.CPP_FLAGS
    problem = problem_of(objective, size, point, derivative)
    return Native(build(made, problem, 0, folder, flags), problem, 0, bank_of(point))


PEERS: dict[str, Callable[..., Any]] = {
    "jax": jax_call,
    "torch": torch_call,
    "autograd": autograd_call,
    "casadi": casadi_call,
}
NATIVE = ("enzyme_ad", *adcpp.HEADERS)
PEERS |= {name: partial(native_call, name) for name in NATIVE}
TITLES = {
    "jax": "JAX",
    "torch": "PyTorch",
    "autograd": "autograd",
    "casadi": "CasADi",
    "enzyme_ad": "Enzyme",
    "adolc": "ADOL-C",
    "sacado": "Sacado",
}


def flat(result: Any) -> np.ndarray:
    if isinstance(result, (tuple, list)):
        return np.concatenate([flat(r) for r in result])
    return np.array(result.detach() if hasattr(result, "detach") else result, float).ravel()


def main(
    peer: str, name: str, size: str, derivative: str, library: str, rounds: str, budget: str, limit: str = "120"
) -> None:
    objective = next(o for o in OBJECTIVES if o.name == name)
    point = objective.point(np.random.default_rng(SEED), **json.loads(size))
    expected = np.frombuffer(sys.stdin.buffer.read())
    if peer not in adcpp.HEADERS:
        if find_spec(peer) is None:
            raise ModuleNotFoundError(f"{TITLES[peer]} is not installed")
        __import__("enzyme_ad.jax" if peer == "enzyme_ad" else peer)
    native = peer in NATIVE
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(int(float(limit)))  # ends this process
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if native:
            timed: Any = PEERS[peer](objective, json.loads(size), point, derivative, Path(folder))
            first = timed(0)
        else:
            call = PEERS[peer](objective, point, derivative)
            first, timed = flat(call()), PythonCall(lambda row: call(), 1)
    prepare = time.perf_counter() - start
    signal.alarm(0)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if derivative == "blocks" and not native:  # the weights' own diagonal is no work
        first = np.concatenate([first, -2 * point["weights"]])
    primal = problem_of(objective, json.loads(size), point, "primal")
    yardstick = Native(Contender("hand", "", "", "", work=4_000_000, library=library), primal, 0, bank_of(point))
    often = 3 if timed.seconds(1)[0] > SLOW else int(rounds)
    t = alternate({"primal": yardstick, peer: timed}, often, float(budget))[peer]
    found = {"nanoseconds": t.nanoseconds, "wall_ratio": t.wall_ratio, "cpu_ratio": t.cpu_ratio}
    print(json.dumps({**found, "prepare": prepare, "kilobytes": kilobytes, "error": error(first, expected)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
