"""The AD suite: the objectives that tools of automatic differentiation are measured by.

An objective's primal is written once as a Python function of arrays over a *mathematics* ``m`` (``Arrays`` and its
relatives: NumPy in any precision, JAX, PyTorch, autograd); the independent reference and every peer start from that.
hyad starts from ``problems/NAME.hy``; the hand-written primal and derivative are ``problems/NAME.c``. A size is a
dict: how many there are of what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from suite import FOLDER, Input, Problem

Size = dict[str, int]
Point = dict[str, Any]  # name -> array, or number
DATA = Path(__file__).parents[3] / "shared" / "data"


@dataclass(frozen=True, eq=False)
class Objective:
    """``derivatives`` maps a derivative's name to how hyad makes it from the module of models; the first is that of the
    table. ``wrt`` are the inputs that it is taken by; ``by_hand`` has the C calls of the primal and of each derivative,
    with ``{NAME}`` for an input or a size, ``{out}`` for the flat result (``{out:k}``: from place k on, an expression
    over the sizes) and ``{work}``; ``room`` the numbers of workspace of each. ``target`` is what R is to be. At the
    sizes ``large``, those of the targets, libraries are not timed.
    """

    name: str
    title: str
    sizes: tuple[Size, ...]
    small: tuple[Size, ...]
    point: Callable[..., Point]
    primal: Callable[..., Any]
    wrt: tuple[str, ...]
    derivatives: dict[str, Callable[[Any], Any]]
    by_hand: dict[str, tuple[str, str, str]]  # name -> declaration, call, room
    target: float
    axis: str  # the size that plots run along
    also: tuple[str, ...] = ()  # files of ``problems`` whose text comes before the hand-written one
    model: str = ""
    threads: bool = False  # whether it is worth two threads
    fixed: tuple[str, ...] = ()  # sizes that a second contender of hyad's has written into the annotations
    results: dict[str, Callable[[Point], int]] = field(default_factory=dict)
    large: tuple[Size, ...] = ()

    @property
    def source(self) -> str:
        return "\n".join((FOLDER / name).read_text() for name in (*self.also, f"{self.model or self.name}.c"))

    @property
    def models(self) -> Path:
        return FOLDER / f"{self.model or self.name}.hy"

    def label(self, size: Size) -> str:
        return " ".join([self.name, *(f"{k}={v}" for k, v in size.items())])


# ------------------------------------------------------------------------------------------- mathematics


class Arrays:
    """NumPy, and what each array library says in its own way. Complex numbers are ordered by their real parts."""

    exp, log, tanh, sqrt, sin, cos = map(staticmethod, (np.exp, np.log, np.tanh, np.sqrt, np.sin, np.cos))
    einsum, stack, concatenate, sum = map(staticmethod, (np.einsum, np.stack, np.concatenate, np.sum))

    @staticmethod
    def largest(a: Any, axis: int) -> Any:
        return np.take_along_axis(a, np.expand_dims(np.argmax(np.real(a), axis), axis), axis).squeeze(axis)

    @staticmethod
    def least(a: Any, axis: int) -> Any:
        return np.take_along_axis(a, np.expand_dims(np.argmin(np.real(a), axis), axis), axis).squeeze(axis)

    @staticmethod
    def sigmoid(a: Any) -> Any:
        return 1 / (1 + np.exp(-a))

    @staticmethod
    def take(a: Any, index: Any) -> Any:
        return a[index]

    def log_sum_exp(self, v: Any, axis: int) -> Any:
        return log_sum_exp(self, v, axis)

    def squared_distances(self, points: Any, centres: Any) -> Any:
        v = centres[None] - points[:, None]
        return self.sum(v * v, axis=2)

    @staticmethod
    def scan(step: Callable[[Any, Any], tuple[Any, Any]], start: Any, items: Sequence[Any]) -> tuple[Any, list[Any]]:
        """``step(state, item)`` gives the next state and an output, for each item."""
        state, outs = start, []
        for k in range(len(items)):
            state, out = step(state, items[k])
            outs.append(out)
        return state, outs


# ---------------------------------------------------------------------------------------------- primals


def log_sum_exp(m: Any, v: Any, axis: int) -> Any:
    top = m.largest(v, axis)
    return top + m.log(m.sum(m.exp(v - (top[:, None] if axis else top)), axis=axis))


def entries_of_roots(d: int) -> np.ndarray:
    """Where each entry of a root stands in a zero, its diagonal, and its column-packed strict lower triangle."""
    index = np.zeros((d, d), int)
    count = d
    for c in range(d):
        index[c, c] = c + 1
        for r in range(c + 1, d):
            count += 1
            index[r, c] = count
    return index


def gmm(m: Any, alphas: Any, means: Any, icf: Any, x: Any, gamma: float, wishart: float) -> Any:
    (k, d), n = means.shape, x.shape[0]
    logs, below = icf[:, :d], icf[:, d:]
    diagonal = m.exp(logs)
    roots = m.take(m.concatenate([0 * icf[:, :1], diagonal, below], axis=1), (slice(None), entries_of_roots(d)))
    y = m.einsum("kij,nj->nki", roots, x) - m.einsum("kij,kj->ki", roots, means)[None]
    terms = alphas[None] + m.sum(logs, axis=1)[None] - 0.5 * m.sum(y * y, axis=2)
    squares = m.sum(diagonal * diagonal) + m.sum(below * below)
    prior = 0.5 * gamma * gamma * squares - wishart * m.sum(logs)
    likelihood = m.sum(m.log_sum_exp(terms, 1)) - n * m.log_sum_exp(alphas, 0)
    return likelihood + prior + gmm_constant(d, k, n, gamma, wishart)


def gmm_constant(d: int, k: int, n: int, gamma: float, wishart: float) -> float:
    freedom = d + wishart + 1
    gammas = 0.25 * d * (d - 1) * math.log(math.pi) + sum(math.lgamma(0.5 * freedom - 0.5 * j) for j in range(d))
    constant = freedom * d * (math.log(gamma) - 0.5 * math.log(2)) - gammas
    return -0.5 * n * d * math.log(2 * math.pi) - k * constant


def lstm(
    m: Any,
    weight: Any,
    bias: Any,
    in_scale: Any,
    out_scale: Any,
    out_bias: Any,
    hidden: Any,
    cell: Any,
    text: Any,
) -> Any:
    """Only the states go step by step; what comes after them is taken of all steps at once."""
    layers = [(w[:3], w[3], a[:3], a[3]) for w, a in ((weight[i], bias[i]) for i in range(weight.shape[0]))]

    def step(state: Any, x: Any) -> Any:
        after, x = [], x * in_scale
        for (h, c), (w, w_change, a, a_change) in zip(state, layers):
            gates = m.sigmoid(w * m.stack([x, h, x]) + a)
            c = c * gates[0] + gates[1] * m.tanh(w_change * h + a_change)
            x = gates[2] * m.tanh(c)
            after.append((x, c))
        return after, x

    _, outs = m.scan(step, [(hidden[i], cell[i]) for i in range(len(layers))], text[:-1])
    y = (m.stack(outs) if isinstance(outs, list) else outs) * out_scale + out_bias
    total = m.sum(text[1:] * (y - m.log_sum_exp(y, 1)[:, None]))
    return -total / ((text.shape[0] - 1) * text.shape[1])


def kmeans(m: Any, centres: Any, points: Any) -> Any:
    return m.sum(m.least(m.squared_distances(points, centres), 1))


def det(m: Any, a: Any) -> Any:
    """All minors of a size at once, none of them twice the same: the naive expansion's work, in arrays."""

    def expand(a: Any) -> Any:
        n = a.shape[1]
        if n == 1:
            return a[:, 0, 0]
        others = np.array([[c for c in range(n) if c != j] for j in range(n)])
        minors = m.take(a, (slice(None), np.arange(1, n)[None, :, None], others[:, None, :]))
        signs = m.constant((-1.0) ** np.arange(n))
        return m.sum(signs * a[:, 0] * expand(minors.reshape(-1, n - 1, n - 1)).reshape(-1, n), axis=1)

    return expand(a[None])[0]


@cache
def powers_of_places(count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The signs of n places from -1 to 1, and their powers: they do not depend on the input, and are made once."""
    t = 2.0 * np.arange(n) / max(1, n - 1) - 1
    powers = np.ones((n, count))
    for j in range(1, count):
        powers[:, j] = powers[:, j - 1] * t
    return np.sign(t), powers


def llsq(m: Any, x: Any, n: int) -> Any:
    signs, powers = powers_of_places(x.shape[0], n)
    r = m.constant(signs) - m.einsum("ij,j->i", m.constant(powers), x)
    return 0.5 * m.sum(r * r)


def lse(m: Any, x: Any) -> Any:
    return m.log_sum_exp(x, 0)


def ode(m: Any, x: Any, s: int) -> Any:
    h, one, n = 2.0 / s, m.constant(np.ones(1)), x.shape[0]

    def slope(y: Any) -> Any:
        return x * m.concatenate([one, y[: n - 1]])

    def step(y: Any, item: Any) -> Any:
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), 0.0

    end, _ = m.scan(step, 0 * x, np.zeros(s))
    return end[n - 1]


def residuals(m: Any, p: Any, features: Any) -> Any:
    """The residuals of all observations: a row of ``p`` is camera, point and weight."""
    r, focal, principal, w = p[:, 0:3], p[:, 6:7], p[:, 7:9], p[:, 14:15]
    v = p[:, 11:14] - p[:, 3:6]
    t = m.sqrt(m.sum(r * r, axis=1))[:, None]
    u = r / t
    cross = m.stack(
        [
            u[:, 1] * v[:, 2] - u[:, 2] * v[:, 1],
            u[:, 2] * v[:, 0] - u[:, 0] * v[:, 2],
            u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0],
        ],
        1,
    )
    seen = m.cos(t) * v + m.sin(t) * cross + (1 - m.cos(t)) * m.sum(u * v, axis=1)[:, None] * u
    flat = seen[:, :2] / seen[:, 2:3]
    q = m.sum(flat * flat, axis=1)[:, None]
    return w * (focal * (1 + p[:, 9:10] * q + p[:, 10:11] * q * q) * flat + principal - features)


def bundle(
    m: Any, cameras: Any, points: Any, weights: Any, features: Any, seen_by: np.ndarray, point_of: np.ndarray
) -> Any:
    p = m.concatenate([cameras[seen_by], points[point_of], weights[:, None]], axis=1)
    return residuals(m, p, features)


def turn(m: Any, x: Any, y: Any) -> Any:
    """A turn about x, then y."""
    cx, sx, cy, sy = m.cos(x), m.sin(x), m.cos(y), m.sin(y)
    return m.stack([cy, sx * sy, cx * sy, 0 * cx, cx, -sx, -sy, sx * cy, cx * cy]).reshape(3, 3)


def turn_about(m: Any, r: Any) -> Any:
    """A turn about the axis r by |r|."""
    zero = 0 * r[0]
    k = m.stack([zero, -r[2], r[1], r[2], zero, -r[0], -r[1], r[0], zero]).reshape(3, 3)
    t = m.sqrt(m.sum(r * r))
    k2 = m.einsum("ij,jk->ik", k, k)
    return m.constant(np.eye(3)) + m.sin(t) / t * k + (1 - m.cos(t)) / (t * t) * k2


def posed(m: Any, theta: Any, parents: Any, relatives: Any, inverses: Any, weights: Any, base: Any) -> Any:
    """A hand's vertices: bones turn one another, the skin follows them, the whole is turned and moved."""
    absolutes: list[tuple[Any, Any]] = []
    turns, moves = [], []
    for b, parent in enumerate(parents):
        j, first = (b - 2) % 4, 6 + 4 * ((b - 2) // 4)
        own, move = m.constant(relatives[b, :, :3]), m.constant(relatives[b, :, 3])
        if b >= 2 and j < 3:
            x, y = (theta[first], theta[first + 1]) if j == 0 else (theta[first + 1 + j], 0 * theta[0])
            own = m.einsum("ij,jk->ik", own, turn(m, x, y))
        if parent >= 0:
            up, at = absolutes[parent]
            own, move = m.einsum("ij,jk->ik", up, own), m.einsum("ij,j->i", up, move) + at
        absolutes.append((own, move))
        turns.append(m.einsum("ij,jk->ik", own, m.constant(inverses[b, :, :3])))
        moves.append(m.einsum("ij,j->i", own, m.constant(inverses[b, :, 3])) + move)
    blend, shift = (m.einsum("vb,b...->v...", m.constant(weights), m.stack(x)) for x in (turns, moves))
    skin = m.einsum("vij,vj->vi", blend, m.constant(base)) + shift
    return m.einsum("ij,vj->vi", turn_about(m, theta[:3]), skin) + theta[3:6]


def ht(
    m: Any,
    theta: Any,
    parents: np.ndarray,
    relatives: np.ndarray,
    inverses: np.ndarray,
    weights: np.ndarray,
    base: np.ndarray,
    points: np.ndarray,
    nearest: np.ndarray,
) -> Any:
    return m.constant(points) - posed(m, theta, parents, relatives, inverses, weights, base)[nearest]


def ht_surface(
    m: Any,
    theta: Any,
    us: Any,
    parents: np.ndarray,
    relatives: np.ndarray,
    inverses: np.ndarray,
    weights: np.ndarray,
    base: np.ndarray,
    points: np.ndarray,
    nearest: np.ndarray,
    faces: np.ndarray,
) -> Any:
    v, f = posed(m, theta, parents, relatives, inverses, weights, base), faces[nearest]
    u0, u1 = us[:, :1], us[:, 1:]
    return m.constant(points) - (u0 * v[f[:, 0]] + u1 * v[f[:, 1]] + (1 - u0 - u1) * v[f[:, 2]])


def descend(f: Callable[[Any], tuple[Any, Any]], x: Any) -> Any:
    """Gradient descent on ``f``, which gives value and gradient, with a step that doubles after ten good steps and
    halves after a bad one."""
    (fx, gx), eta, good = f(x), 1e-5, 0
    while np.sqrt(np.sum(gx * gx)) > 1e-5:
        if good == 10:
            eta, good = 2 * eta, 0
            continue
        after = x - eta * gx
        if np.sqrt(np.sum((x - after) ** 2)) <= 1e-5:
            break
        fafter, gafter = f(after)
        if fafter < fx:
            x, fx, gx, good = after, fafter, gafter, good + 1
        else:
            eta, good = eta / 2, 0
    return x


def saddle(m: Any, start: np.ndarray) -> np.ndarray:
    """The gradients of the sums of squares by hand; the inner maximum does not depend on the outer point."""

    def highest(u: np.ndarray) -> np.ndarray:
        return descend(lambda v: (-(np.sum(u * u) - np.sum(v * v)), 2 * v), start)

    def outer(u: np.ndarray) -> tuple[Any, Any]:
        v = highest(u)
        return np.sum(u * u) - np.sum(v * v), 2 * u

    u = descend(outer, start)
    return np.concatenate([u, highest(u)])


def particle(m: Any, w: float) -> np.ndarray:
    """The potential's gradient by hand, the derivative by w by a complex step."""
    tiny = np.longdouble("1e-40")

    def lands(w: Any) -> Any:
        x, v = np.array([0, 8], np.clongdouble), np.array([0.75, 0], np.clongdouble)
        after = x + 0.1 * v
        while after[1].real > 0:
            apart = [x - np.array([10, 10 - w]), x - np.array([10, 0 * w])]
            v = v + 0.1 * sum(p / np.sqrt(np.sum(p * p)) ** 3 for p in apart)
            x, after = after, after + 0.1 * v
        return (x[0] - x[1] / v[1] * v[0]) ** 2

    def both(w: Any) -> tuple[Any, Any]:
        y = lands(w[0] + 1j * tiny)
        return y.real, np.array([y.imag / tiny])

    return descend(both, np.array([w], np.longdouble)).astype(float)


# ----------------------------------------------------------------------------------------------- points


def gmm_point(rng: np.random.Generator, d: int, k: int, n: int, m: int = 0) -> Point:
    return {
        "alphas": rng.normal(size=k),
        "means": rng.uniform(size=(k, d)),
        "icf": rng.normal(size=(k, d * (d + 1) // 2)),
        "x": rng.normal(size=(n, d)),
        "gamma": 1.0 if m == 0 else 1.7,
        "m": float(m),
    }


def lstm_point(rng: np.random.Generator, l: int, b: int, n: int, saturated: int = 0) -> Point:  # noqa: E741
    scale = 30.0 if saturated else 1.0
    return {
        "weight": scale * rng.normal(size=(l, 4, b)),
        "bias": scale * rng.normal(size=(l, 4, b)),
        "in_scale": rng.normal(size=b),
        "out_scale": (25 if saturated else 1) * scale * rng.normal(size=b),
        "out_bias": rng.normal(size=b),
        "hidden": rng.normal(size=(l, b)),
        "cell": rng.normal(size=(l, b)),
        "text": np.eye(b)[rng.integers(b, size=n)],
    }


def kmeans_point(rng: np.random.Generator, k: int, n: int, d: int, ties: int = 0) -> Point:
    """``ties``: every second centre is the one before it."""
    centres, points = rng.normal(size=(k, d)), rng.normal(size=(n, d))
    if ties:
        centres[1::2] = centres[: k - 1 : 2][: len(centres[1::2])]
    return {"centres": centres, "points": points}


def bundle_point(rng: np.random.Generator, c: int, n: int, m: int) -> Point:
    """Cameras that have the points in front of them; every observation of some point by some camera."""
    cameras = np.concatenate(
        [
            rng.uniform(-0.4, 0.4, (c, 3)),
            rng.uniform(-1, 1, (c, 3)),
            rng.uniform(400, 600, (c, 1)),
            rng.uniform(-5, 5, (c, 2)),
            rng.uniform(-0.1, 0.1, (c, 2)),
        ],
        axis=1,
    )
    return {
        "cameras": cameras,
        "points": rng.uniform(-1, 1, (n, 3)) + [0.0, 0.0, 6.0],
        "weights": rng.uniform(0.5, 1.5, m),
        "features": rng.uniform(-100, 100, (m, 2)),
        "seen_by": rng.integers(c, size=m),
        "point_of": rng.integers(n, size=m),
    }


def ht_point(rng: np.random.Generator, v: int, c: int, still: int = 0, surface: bool = False) -> Point:
    """A made-up hand of five fingers: each vertex near up to three bones of one finger. ``still``: not rotated."""

    def rigid(small: float) -> np.ndarray:
        return np.concatenate([turn_about(NumPy(), rng.normal(size=3) * small), rng.normal(size=(3, 1))], axis=1)

    def after(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.concatenate([a[:, :3] @ b[:, :3], a[:, :3] @ b[:, 3:] + a[:, 3:]], axis=1)

    parents = np.array([-1, 0, *(1 if j == 0 else 2 + 4 * f + j - 1 for f in range(5) for j in range(4))])
    relatives = np.stack([rigid(0.3) for _ in parents])
    places: list[np.ndarray] = []
    for b, parent in enumerate(parents):
        places.append(relatives[b] if parent < 0 else after(places[parent], relatives[b]))
    inverses = np.ascontiguousarray([np.concatenate([p[:, :3].T, -p[:, :3].T @ p[:, 3:]], axis=1) for p in places])
    weights = np.zeros((v, len(parents)))
    for row in weights:
        finger, joint = rng.integers(5), rng.integers(5)
        near = [1 if j < 0 else 2 + 4 * finger + min(j, 3) for j in (joint - 2, joint - 1, joint)]
        for b in near:
            row[b] += rng.uniform(0.1, 1)
        row /= row.sum()
    theta = np.concatenate(
        [np.zeros(3) if still else rng.normal(size=3), rng.normal(size=3), rng.normal(size=20) * 0.5]
    )
    point = {
        "theta": theta,
        "parents": parents,
        "relatives": relatives,
        "inverses": inverses,
        "weights": weights,
        "base": rng.normal(size=(v, 3)),
        "points": rng.normal(size=(c, 3)),
    }
    if not surface:
        return {**point, "nearest": rng.integers(v, size=c)}
    us = rng.uniform(0, 0.5, (c, 2))
    faces = rng.integers(v, size=(2 * v, 3))
    return {"theta": theta, "us": us, **point, "nearest": rng.integers(2 * v, size=c), "faces": faces}


def lse_point(rng: np.random.Generator, n: int, saturated: int = 0) -> Point:
    """``saturated``: all but the largest, and its equals, vanish beside it."""
    x = rng.normal(size=n)
    if saturated:
        x = np.where(np.arange(n) % 3 == 1, 800.0, -800.0 * np.abs(x))
    return {"x": x}


# ------------------------------------------------------------------------------------------- objectives


def grad(name: str, wrt: tuple[str, ...]) -> Callable[[Any], Any]:
    """hyad's gradient of one model of a module."""

    def make(models: Any) -> Any:
        import hyad

        names = tuple(w.replace("_", "-") for w in wrt)
        return hyad.grad(getattr(models, name), wrt=names if len(names) > 1 else names[0])

    return make


def jacobian_by(name: str, wrt: str) -> Callable[[Any], Any]:
    """hyad's Jacobian of one model of a module."""

    def make(models: Any) -> Any:
        import hyad

        return hyad.jacobian(getattr(models, name), wrt=wrt)

    return make


def itself(name: str) -> Callable[[Any], Any]:
    """A model that is the derivative already."""
    return lambda models: getattr(models, name.replace("-", "_"))


GMM_IN = "const double *alphas, const double *means, const double *icf, const double *x, double gamma, double m"
LSTM_IN = ", ".join(
    f"const double *{a}" for a in ("weight", "bias", "in_scale", "out_scale", "out_bias", "hidden", "cell", "text")
)
LSTM_CALL = "{l}, {b}, {n}, {weight}, {bias}, {in_scale}, {out_scale}, {out_bias}, {hidden}, {cell}, {text}"
BUNDLE_IN = (
    "const double *cameras, const double *points, const double *weights, const double *features, "
    "const long long *seen_by, const long long *point_of"
)
BUNDLE_CALL = (
    "{m}, {cameras}, {points}, {weights}, {features}, "
    "(const long long *)(const void *){seen_by}, (const long long *)(const void *){point_of}"
)
HAND_IN = (
    "long long n, long long v, long long c, const double *theta, const long long *parents, const double *relatives, "
    "const double *inverses, const double *weights, const double *base, const double *points, const long long *nearest"
)
HAND_ROOM = "22 * 120 + 81 * v"
HAND_CALL = (
    "22, {v}, {c}, {theta}, (const long long *)(const void *){parents}, {relatives}, {inverses}, {weights}, {base}, "
    "{points}, (const long long *)(const void *){nearest}"
)
NESTED_MODES = ("ff", "fr", "rf", "rr")  # the outer gradient's mode and the inner one's

OBJECTIVES = [
    Objective(
        "gmm",
        "Gaussian mixture with Wishart prior, gradient by alphas, means and icf",
        ({"d": 2, "k": 5, "n": 1000}, {"d": 10, "k": 25, "n": 1000}, {"d": 20, "k": 25, "n": 1000}),
        (
            {"d": 1, "k": 1, "n": 1},
            {"d": 3, "k": 2, "n": 3, "m": 2},
            {"d": 2, "k": 17, "n": 5},
            {"d": 17, "k": 1, "n": 3, "m": 1},
        ),
        gmm_point,
        gmm,
        ("alphas", "means", "icf"),
        {"gradient": grad("gmm", ("alphas", "means", "icf"))},
        {
            "primal": (
                f"double gmm(long long d, long long k, long long n, {GMM_IN}, double *work);",
                "{out}[0] = gmm({d}, {k}, {n}, {alphas}, {means}, {icf}, {x}, {gamma}, {m}, {work})",
                "k * d + 2 * k + 2 * d",
            ),
            "gradient": (
                f"void gmm_grad(long long d, long long k, long long n, {GMM_IN}, "
                "double *g_alphas, double *g_means, double *g_icf, double *work);",
                "gmm_grad({d}, {k}, {n}, {alphas}, {means}, {icf}, {x}, {gamma}, {m}, "
                "{out}, {out} + {k}, {out} + {k} + {k} * {d}, {work})",
                "3 * k * d + 2 * k",
            ),
        },
        1.0,
        "d",
        threads=True,
        fixed=("d",),
        large=({"d": 64, "k": 100, "n": 1000},),
    ),
    Objective(
        "bundle",
        "bundle adjustment over all observations, sparse Jacobian of 2 x 15 blocks",
        ({"c": 49, "n": 7776, "m": 31843},),
        ({"c": 1, "n": 1, "m": 1}, {"c": 3, "n": 17, "m": 20}),
        bundle_point,
        bundle,
        (),
        {"blocks": itself("bundle-blocks")},
        {
            "primal": (
                f"void bundle(long long m, {BUNDLE_IN}, double *errors, double *weight_errors);",
                f"bundle({BUNDLE_CALL}, {{out}}, {{out}} + 2 * {{m}})",
                "1",
            ),
            "blocks": (
                f"void bundle_blocks(long long m, {BUNDLE_IN}, double *blocks, double *diagonal);",
                f"bundle_blocks({BUNDLE_CALL}, {{out}}, {{out}} + 30 * {{m}})",
                "1",
            ),
        },
        6.0,
        "m",
        also=("ba.c",),
        threads=True,
        results={"primal": lambda p: 3 * len(p["weights"]), "blocks": lambda p: 31 * len(p["weights"])},
        large=({"c": 1000, "n": 60000, "m": 225000}, {"c": 1000, "n": 200000, "m": 1250000}),
    ),
    Objective(
        "lstm",
        "LSTM with diagonal weights over a sequence of characters, gradient of all parameters",
        ({"l": 2, "b": 14, "n": 1024}, {"l": 4, "b": 14, "n": 4096}),
        ({"l": 1, "b": 1, "n": 2}, {"l": 3, "b": 17, "n": 4}, {"l": 2, "b": 3, "n": 17, "saturated": 1}),
        lstm_point,
        lstm,
        ("weight", "bias", "in_scale", "out_scale", "out_bias"),
        {"gradient": grad("lstm", ("weight", "bias", "in_scale", "out_scale", "out_bias"))},
        {
            "primal": (
                f"double lstm(long long l, long long b, long long n, {LSTM_IN}, double *work);",
                f"{{out}}[0] = lstm({LSTM_CALL}, {{work}})",
                "2 * l * b + 2 * b",
            ),
            "gradient": (
                f"void lstm_grad(long long l, long long b, long long n, {LSTM_IN}, double *g_weight, double *g_bias, "
                "double *g_in, double *g_scale, double *g_out, double *work);",
                f"lstm_grad({LSTM_CALL}, {{out}}, {{out}} + 4 * {{l}} * {{b}}, {{out}} + 8 * {{l}} * {{b}}, "
                "{out} + 8 * {l} * {b} + {b}, {out} + 8 * {l} * {b} + 2 * {b}, {work})",
                "4 * l * b + 2 * b + (n - 1) * (8 * l * b + 2 * b)",
            ),
        },
        1.3,
        "n",
    ),
    Objective(
        "kmeans",
        "k-means, gradient and diagonal of the Hessian by the centres",
        ({"k": 10, "n": 10000, "d": 16}, {"k": 100, "n": 10000, "d": 16}),
        ({"k": 1, "n": 1, "d": 1}, {"k": 3, "n": 17, "d": 3}, {"k": 17, "n": 3, "d": 2, "ties": 1}),
        kmeans_point,
        kmeans,
        ("centres",),
        {"gradient": grad("kmeans", ("centres",)), "diagonal": itself("kmeans-diagonal")},
        {
            "primal": (
                "double kmeans(long long k, long long n, long long d, const double *centres, const double *points);",
                "{out}[0] = kmeans({k}, {n}, {d}, {centres}, {points})",
                "1",
            ),
            "gradient": (
                "void kmeans_grad(long long k, long long n, long long d, const double *centres, const double *points, "
                "double *g);",
                "kmeans_grad({k}, {n}, {d}, {centres}, {points}, {out})",
                "1",
            ),
            "diagonal": (
                "void kmeans_diagonal(long long k, long long n, long long d, const double *centres, "
                "const double *points, double *h);",
                "kmeans_diagonal({k}, {n}, {d}, {centres}, {points}, {out})",
                "1",
            ),
        },
        1.0,
        "k",
        threads=True,
        fixed=("d",),
        large=({"k": 1000, "n": 10000, "d": 16},),
    ),
    Objective(
        "det",
        "determinant by expansion along minors, written naively",
        ({"n": 5}, {"n": 6}, {"n": 7}, {"n": 8}),
        ({"n": 1}, {"n": 3}, {"n": 5}),
        lambda rng, n: {"a": rng.normal(size=(n, n))},
        det,
        ("a",),
        {"gradient": grad("determinant", ("a",))},
        {
            "primal": ("double det(long long n, const double *a);", "{out}[0] = det({n}, {a})", "1"),
            "gradient": (
                "void det_grad(long long n, const double *a, double *g, double *work);",
                "det_grad({n}, {a}, {out}, {work})",
                "n * n",
            ),
        },
        0.1,
        "n",
        fixed=("n",),
        large=({"n": 9}, {"n": 10}),
    ),
    Objective(
        "llsq",
        "least squares of a polynomial against the sign function",
        ({"m": 128, "n": 64}, {"m": 128, "n": 512}),
        ({"m": 1, "n": 1}, {"m": 3, "n": 17}, {"m": 17, "n": 3}),
        lambda rng, m, n: {"x": rng.normal(size=m), "n": n},
        llsq,
        ("x",),
        {"gradient": grad("llsq", ("x",))},
        {
            "primal": (
                "double llsq(long long m, long long n, const double *x);",
                "{out}[0] = llsq({m}, {n}, {x})",
                "1",
            ),
            "gradient": (
                "void llsq_grad(long long m, long long n, const double *x, double *g);",
                "llsq_grad({m}, {n}, {x}, {out})",
                "1",
            ),
        },
        1.0,
        "n",
        large=({"m": 128, "n": 16392},),
    ),
    Objective(
        "lse",
        "logarithm of a sum of exponentials, shifted by the largest",
        ({"n": 100}, {"n": 10000}),
        ({"n": 1}, {"n": 3}, {"n": 17, "saturated": 1}),
        lse_point,
        lse,
        ("x",),
        {"gradient": grad("lse", ("x",))},
        {
            "primal": ("double lse(long long n, const double *x);", "{out}[0] = lse({n}, {x})", "1"),
            "gradient": (
                "void lse_grad(long long n, const double *x, double *g);",
                "lse_grad({n}, {x}, {out})",
                "1",
            ),
        },
        0.7,
        "n",
        large=({"n": 1280000},),
    ),
    Objective(
        "ode",
        "Runge-Kutta steps of a chain of equations, gradient of the last component",
        ({"n": 4, "s": 8}, {"n": 12, "s": 16}),
        ({"n": 1, "s": 1}, {"n": 3, "s": 17}, {"n": 17, "s": 5}),
        lambda rng, n, s: {"x": rng.uniform(0.5, 1.5, n), "s": s},
        ode,
        ("x",),
        {"gradient": grad("ode", ("x",))},
        {
            "primal": (
                "double ode(long long n, long long s, const double *x, double *work);",
                "{out}[0] = ode({n}, {s}, {x}, {work})",
                "6 * n",
            ),
            "gradient": (
                "void ode_grad(long long n, long long s, const double *x, double *g, double *work);",
                "ode_grad({n}, {s}, {x}, {out}, {work})",
                "8 * n + 4 * n * s",
            ),
        },
        3.0,
        "s",
        fixed=("n",),
        large=({"n": 24, "s": 2000},),
    ),
    Objective(
        "ht",
        "hand tracking: points minus vertices of a skinned mesh, Jacobian by the 26 numbers of the pose",
        ({"v": 544, "c": 100}, {"v": 544, "c": 3200}),
        ({"v": 1, "c": 1}, {"v": 17, "c": 5}, {"v": 3, "c": 4, "still": 1}),
        ht_point,
        ht,
        (),
        {"jacobian": jacobian_by("ht", "theta")},
        {
            "primal": (
                f"void ht({HAND_IN}, double *out, double *work);",
                f"ht({HAND_CALL}, {{out}}, {{work}})",
                HAND_ROOM,
            ),
            "jacobian": (
                f"void ht_jacobian({HAND_IN}, double *out, double *work);",
                f"ht_jacobian({HAND_CALL}, {{out}}, {{work}})",
                HAND_ROOM,
            ),
        },
        12.0,
        "c",
        results={"primal": lambda p: 3 * len(p["points"]), "jacobian": lambda p: 78 * len(p["points"])},
    ),
    Objective(
        "ht-surface",
        "hand tracking: points minus their places on triangles, Jacobian by the pose and each point's two coordinates",
        ({"v": 544, "c": 100}, {"v": 544, "c": 3200}),
        ({"v": 17, "c": 5}, {"v": 3, "c": 4, "still": 1}),
        partial(ht_point, surface=True),
        ht_surface,
        (),
        {"jacobian": itself("ht-surface-jacobian")},
        {
            "primal": (
                f"void ht_surface({HAND_IN}, const double *us, const long long *faces, double *out, double *work);",
                f"ht_surface({HAND_CALL}, {{us}}, (const long long *)(const void *){{faces}}, {{out}}, {{work}})",
                HAND_ROOM,
            ),
            "jacobian": (
                f"void ht_surface_jacobian({HAND_IN}, const double *us, const long long *faces, double *by_pose, "
                "double *by_us, double *work);",
                f"ht_surface_jacobian({HAND_CALL}, {{us}}, (const long long *)(const void *){{faces}}, {{out}}, "
                "{out} + 78 * {c}, {work})",
                HAND_ROOM,
            ),
        },
        12.0,
        "c",
        model="ht",
        results={"primal": lambda p: 3 * len(p["points"]), "jacobian": lambda p: 84 * len(p["points"])},
    ),
    Objective(
        "particle",
        "nested: gradient descent over the landing place of a particle, which a gradient moves",
        ({},),
        ({},),
        lambda rng: {"w": 0.0},
        particle,
        (),
        {mode: itself(f"particle-{mode}") for mode in NESTED_MODES},
        {"primal": ("double particle(double w);", "{out}[0] = particle({w})", "1")},
        1.0,
        "",
        model="nested",
        results=dict.fromkeys(("primal", *NESTED_MODES), lambda p: 1),
    ),
    Objective(
        "saddle",
        "nested: gradient descent over the maximum that gradient ascent finds",
        ({},),
        ({},),
        lambda rng: {"start": np.array([1.0, 1.0])},
        saddle,
        (),
        {mode: itself(f"saddle-{mode}") for mode in NESTED_MODES},
        {"primal": ("void saddle(const double *start, double *out);", "saddle({start}, {out})", "1")},
        1.0,
        "",
        model="nested",
        results=dict.fromkeys(("primal", *NESTED_MODES), lambda p: 4),
    ),
]


# -------------------------------------------------------------------------------------------- reference


def reference(objective: Objective, size: Size, point: Point, derivative: str) -> np.ndarray:
    """The flat derivative, found from the primal alone by complex steps in extended precision: one per number, so for
    small sizes."""
    active = [np.asarray(point[w], np.clongdouble) for w in objective.wrt]
    if derivative in NESTED_MODES:
        return np.asarray(objective.primal(NumPy(), *point.values()), float)
    if derivative == "diagonal":
        return diagonal_by_differences(objective, point)
    if derivative == "blocks":
        return blocks_by_steps(point)
    if derivative == "jacobian":
        return jacobian_by_steps(objective, point)
    total = sum(a.size for a in active)
    found = np.empty(total)
    for k in range(total):
        direction = np.zeros(total)
        direction[k] = 1.0
        found[k] = slope(objective, point, direction)
    return found


def value(objective: Objective, point: Point) -> float:
    return float(np.real(objective.primal(NumPy(), *point.values())))


def slope(objective: Objective, point: Point, direction: np.ndarray) -> float:
    """The derivative along one direction: a complex step of 1e-40, in the processor's extended precision."""
    tiny, at = np.longdouble("1e-40"), 0
    moved = {}
    for name, given in point.items():
        if name in objective.wrt:
            part = np.asarray(given, np.longdouble)
            step = np.asarray(direction[at : at + part.size], np.longdouble).reshape(part.shape)
            moved[name] = part + 1j * tiny * step
            at += part.size
        else:
            moved[name] = given
    return float(np.imag(objective.primal(NumPy(), *moved.values())) / tiny)


def diagonal_by_differences(objective: Objective, point: Point) -> np.ndarray:
    """Differences of the gradient, which is piecewise linear here. Of equal centres the first has the points: the
    others are moved away."""
    (name,) = objective.wrt
    base = np.asarray(point[name], np.longdouble)
    for j in range(1, len(base)):
        if any(np.array_equal(base[j], c) for c in base[:j]):
            base[j] += 1000.0 * j
    found, h = np.empty(base.size), np.longdouble(2.0) ** -20
    for k in range(base.size):
        direction = np.zeros(base.size)
        direction[k] = 1.0
        up, down = base.copy(), base.copy()
        up.flat[k] += h
        down.flat[k] -= h
        rise = slope(objective, {**point, name: up}, direction) - slope(objective, {**point, name: down}, direction)
        found[k] = rise / (2 * h)
    return found


def jacobian_by_steps(objective: Objective, point: Point) -> np.ndarray:
    """By the pose, a complex step for each column; by each point's own coordinates, one for all points. A hand that is
    not turned is one that is turned by nearly nothing."""
    tiny = np.longdouble("1e-40")
    theta = np.asarray(point["theta"], np.clongdouble)
    theta[0] += 0 if np.any(theta[:3] != 0) else np.longdouble("1e-14")

    def column(moved: Point) -> np.ndarray:
        return np.imag(objective.primal(NumPy(), *{**point, "theta": theta, **moved}.values())) / tiny

    steps = 1j * tiny * np.eye(len(theta), dtype=np.clongdouble)
    parts = [np.stack([column({"theta": theta + step}) for step in steps], axis=-1)]
    if "us" in point:
        us = np.asarray(point["us"], np.clongdouble)
        parts.append(np.stack([column({"us": us + 1j * tiny * np.eye(2)[k]}) for k in range(2)], axis=-1))
    return np.concatenate([np.asarray(p, float).ravel() for p in parts])


def blocks_by_steps(point: Point) -> np.ndarray:
    """All observations' blocks: one complex step for each of the 15 columns. A rotation by nothing is one by nearly
    nothing."""
    tiny = np.longdouble("1e-40")
    camera = np.asarray(point["cameras"], np.longdouble)[point["seen_by"]]
    camera[:, 0] += np.where(np.any(camera[:, :3] != 0, axis=1), 0, np.longdouble("1e-14"))
    weights = np.asarray(point["weights"], np.longdouble)
    p = np.concatenate([camera, np.asarray(point["points"], np.longdouble)[point["point_of"]], weights[:, None]], 1)
    blocks = np.empty((len(weights), 2, 15))
    for k in range(15):
        moved = p.astype(np.clongdouble)
        moved[:, k] += 1j * tiny
        blocks[:, :, k] = np.imag(residuals(NumPy(), moved, point["features"])) / tiny
    return np.concatenate([blocks.ravel(), -2 * np.asarray(weights, float)])


class NumPy(Arrays):
    @staticmethod
    def constant(a: Any) -> Any:
        return a


# ---------------------------------------------------------------------------- as measure.py wants them


def problem_of(objective: Objective, size: Size, point: Point, derivative: str) -> Problem:
    """One objective at one size as a problem that ``measure`` can time."""
    shapes = {name: np.shape(given) for name, given in point.items()}
    inputs = tuple(Input(name, lambda n, s=shape: s, active=name in objective.wrt) for name, shape in shapes.items())
    counts = {"primal": lambda p: 1, **objective.results}
    count = counts.get(derivative, lambda p: sum(np.size(p[w]) for w in objective.wrt))(point)
    return Case(
        objective.name, objective.title, derivative, (0,), inputs, objective.primal, lambda n, rng: [], "", "", count
    )


@dataclass(frozen=True, eq=False)
class Case(Problem):
    """``outputs`` numbers come out."""

    def results(self, n: int) -> int:
        return self.outputs


def bank_of(point: Point) -> np.ndarray:
    """The one point that is timed; integers in arrays stand there as their bits."""
    parts = []
    for given in point.values():
        a = np.asarray(given)
        whole = a.ndim and np.issubdtype(a.dtype, np.integer)
        parts.append(a.astype(np.int64).ravel().view(float) if whole else a.astype(float).ravel())
    return np.concatenate(parts)[None, :]
