"""The problems: one record each, with everything that a contender needs to know.

A problem's primal is written once as a plain Python function of scalars over a *mathematics* ``m``, any module with
``sin``, ``cos``, ``exp``, ``log``, ``sqrt`` and ``tanh``: mpmath, SymPy, SymEngine, CasADi's and wrenfold's symbols,
NumPy. The independent reference and every peer start from that one function; hyad starts from ``problems/NAME.hy``
and the yardstick is ``problems/NAME.c``. Where an array library would be written differently, ``array_primal`` says
how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "problems"

JACOBIAN, HESSIAN, GRADIENT, VALUE_AND_GRADIENT = "jacobian", "hessian", "gradient", "value and gradient"


@dataclass(frozen=True)
class Input:
    """One argument: ``shape(n)`` is its shape at size n, () for a number; ``active`` says that it is differentiated."""

    name: str
    shape: Callable[[int], tuple[int, ...]]
    active: bool = True

    def count(self, n: int) -> int:
        return prod(self.shape(n))


@dataclass(frozen=True, eq=False)
class Problem:
    """``kind`` is the derivative asked for; its result is flat: value first, rows of a matrix one after the other.

    ``primal(m, *arguments)`` takes numbers, lists and lists of rows and gives a number or a list. ``sample(n, rng)``
    draws one point of the domain, arguments in order. ``call`` is the C call of the hand-written derivative:
    ``{name}`` for an input, ``{n}`` for the size, ``{out}`` for the flat result. ``targets`` says per size what
    hyad is to reach: times the hand-written C, and the seconds to derive, print and compile.
    """

    name: str
    title: str
    kind: str
    sizes: tuple[int, ...]
    inputs: tuple[Input, ...]
    primal: Callable[..., Any]
    sample: Callable[[int, np.random.Generator], list[Any]]
    declaration: str
    call: str
    outputs: int = 1
    sized: bool = True
    array_primal: Callable[..., Any] | None = None
    targets: dict[int, tuple[float, float]] = field(default_factory=dict)

    def results(self, n: int) -> int:
        """How many numbers the derivative has."""
        active = sum(i.count(n) for i in self.inputs if i.active)
        return {
            JACOBIAN: self.outputs * active,
            HESSIAN: active * active,
            GRADIENT: active,
            VALUE_AND_GRADIENT: 1 + active,
        }[self.kind]

    def label(self, n: int) -> str:
        return f"{self.name} {n}" if self.sized else self.name

    @property
    def model(self) -> Path:
        return FOLDER / f"{self.name}.hy"

    @property
    def hand(self) -> Path:
        return FOLDER / f"{self.name}.c"


def flatten(arguments: list[Any]) -> np.ndarray:
    """The numbers of one point, in order."""
    return np.concatenate([np.asarray(a, float).ravel() for a in arguments])


def nest(problem: Problem, n: int, numbers: list[Any]) -> list[Any]:
    """The arguments whose numbers, in order, are ``numbers``: numbers, lists and lists of rows."""
    arguments, at = [], 0
    for given in problem.inputs:
        shape, size = given.shape(n), given.count(n)
        part = list(numbers[at : at + size])
        at += size
        if len(shape) == 0:
            arguments.append(part[0])
        elif len(shape) == 1:
            arguments.append(part)
        else:
            arguments.append([part[i * shape[1] : (i + 1) * shape[1]] for i in range(shape[0])])
    return arguments


def fk(m: Any, q: list[Any]) -> list[Any]:
    """Rotation (row by row) and position: the product of the Denavit-Hartenberg transforms."""
    table = [
        (0, 0.089159, 1),
        (-0.425, 0, 0),
        (-0.39225, 0, 0),
        (0, 0.10915, 1),
        (0, 0.09465, -1),
        (0, 0.0823, 0),
    ]
    x, y, z, p = [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]
    for angle, (a, d, twist) in zip(q, table):
        c, s = m.cos(angle), m.sin(angle)
        x, y = [c * u + s * v for u, v in zip(x, y)], [c * v - s * u for u, v in zip(x, y)]
        p = [w + d * k + a * i for w, k, i in zip(p, z, x)]
        if twist:
            y, z = [twist * k for k in z], [-twist * j for j in y]
    return [e for row in zip(x, y, z) for e in row] + p


def ba(m: Any, p: list[Any], feature: list[Any]) -> list[Any]:
    """Rodrigues' rotation (off zero), projection, radial distortion."""
    r, focal, principal, (k1, k2), w = p[0:3], p[6], p[7:9], p[9:11], p[14]
    v = [a - b for a, b in zip(p[11:14], p[3:6])]
    t = m.sqrt(sum(a * a for a in r))
    u = [a / t for a in r]
    c, s = m.cos(t), m.sin(t)
    along = (1 - c) * sum(a * b for a, b in zip(u, v))
    cross = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]]
    seen = [c * a + s * b + along * d for a, b, d in zip(v, cross, u)]
    x, y = seen[0] / seen[2], seen[1] / seen[2]
    q = x * x + y * y
    d = 1 + k1 * q + k2 * q * q
    return [w * (focal * d * e + o - g) for e, o, g in zip((x, y), principal, feature)]


def rosen(m: Any, x: list[Any]) -> Any:
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in zip(x, x[1:]))


def helm(m: Any, x: list[Any], a: list[list[Any]], b: list[Any]) -> Any:
    bx = sum(u * v for u, v in zip(b, x))
    xax = sum(u * sum(c * v for c, v in zip(row, x)) for u, row in zip(x, a))
    r2 = m.sqrt(x[0] * 0 + 2) if m is np else m.sqrt(2)  # in the precision of x
    ideal = sum(u * m.log(u / (1 - bx)) for u in x)
    return ideal - xax / (2 * r2 * bx) * m.log((1 + (1 + r2) * bx) / (1 + (1 - r2) * bx))


def speelpenning(m: Any, x: list[Any]) -> Any:
    value = x[0]
    for a in x[1:]:
        value = value * a
    return value


def expr30(m: Any, x: Any, y: Any, z: Any, w: Any) -> Any:
    a = x * y
    b = a + z
    c = m.sin(b)
    d = c * w
    e = m.exp(-(d / 2))
    f = a / (1 + z * z)
    g = m.sqrt(x * x + y * y)
    h = m.log(g + e)
    i = f - h
    k = m.cos(x - w)
    n = m.tanh(i * c + k * e) / (g + 2)
    p = n * b - d * w
    return p * p + h


def ba_point(n: int, rng: np.random.Generator) -> list[Any]:
    """A camera that has the point in front of it."""
    rotation = rng.uniform(-0.8, 0.8, 3)
    centre, point = rng.uniform(-1, 1, 3), rng.uniform(-1, 1, 3) + [0.0, 0.0, 6.0]
    rest = [rng.uniform(400, 600), *rng.uniform(-5, 5, 2), *rng.uniform(-0.1, 0.1, 2)]
    return [np.array([*rotation, *centre, *rest, *point, rng.uniform(0.5, 1.5)]), rng.uniform(-100, 100, 2)]


def helm_point(n: int, rng: np.random.Generator) -> list[Any]:
    """Attractions need not be symmetric; b.x stays well inside (0, 1)."""
    return [rng.uniform(0.5, 1.5, n), rng.uniform(0.0, 1.0, (n, n)), rng.uniform(0.1, 0.6, n) / n]


def vector(n: int) -> tuple[int, ...]:
    return (n,)


def number(n: int) -> tuple[int, ...]:
    return ()


PROBLEMS = [
    Problem(
        "fk",
        "UR5 forward kinematics, Jacobian 12 x 6",
        JACOBIAN,
        (6,),
        (Input("q", vector),),
        fk,
        lambda n, rng: [rng.uniform(-np.pi, np.pi, 6)],
        "void fk_jac(const double *q, double *J);",
        "fk_jac({q}, {out})",
        outputs=12,
        sized=False,
        targets={6: (0.65, 0.3)},
    ),
    Problem(
        "ba",
        "one bundle-adjustment residual, Jacobian 2 x 15",
        JACOBIAN,
        (15,),
        (Input("p", vector), Input("feature", lambda n: (2,), active=False)),
        ba,
        ba_point,
        "void ba_jac(const double *p, const double *feature, double *J);",
        "ba_jac({p}, {feature}, {out})",
        outputs=2,
        sized=False,
        targets={15: (1.0, 0.3)},
    ),
    Problem(
        "rosen",
        "Rosenbrock, Hessian n x n",
        HESSIAN,
        (10, 100),
        (Input("x", vector),),
        rosen,
        lambda n, rng: [rng.uniform(-2, 2, n)],
        "void rosen_hess(const double *x, long long n, double *H);",
        "rosen_hess({x}, {n}, {out})",
        array_primal=lambda m, x: m.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2),
        targets={10: (0.65, 0.2), 100: (1.0, 0.3)},
    ),
    Problem(
        "helm",
        "Helmholtz energy, Hessian n x n",
        HESSIAN,
        (10, 50, 100),
        (
            Input("x", vector),
            Input("a", lambda n: (n, n), active=False),
            Input("b", vector, active=False),
        ),
        helm,
        helm_point,
        "void helm_hess(const double *x, const double *a, const double *b, long long n, double *H);",
        "helm_hess({x}, {a}, {b}, {n}, {out})",
        array_primal=lambda m, x, a, b: (
            m.sum(x * m.log(x / (1 - m.dot(b, x))))
            - m.dot(x, m.dot(a, x))
            / (m.sqrt(8.0) * m.dot(b, x))
            * m.log((1 + (1 + m.sqrt(2.0)) * m.dot(b, x)) / (1 + (1 - m.sqrt(2.0)) * m.dot(b, x)))
        ),
        targets={10: (1.3, 0.3), 50: (1.3, 0.5), 100: (1.3, 0.5)},
    ),
    Problem(
        "prod",
        "Speelpenning's product, value and gradient",
        VALUE_AND_GRADIENT,
        (1000,),
        (Input("x", vector),),
        speelpenning,
        lambda n, rng: [rng.uniform(0.8, 1.2, n)],
        "void prod_grad(const double *x, long long n, double *value, double *g);",
        "prod_grad({x}, {n}, {out}, {out} + 1)",
        array_primal=lambda m, x: m.prod(x),
        targets={1000: (1.2, 0.2)},
    ),
    Problem(
        "expr30",
        "thirty scalar operations, gradient in 4 variables",
        GRADIENT,
        (4,),
        tuple(Input(name, number) for name in "xyzw"),
        expr30,
        lambda n, rng: list(rng.uniform(0.5, 1.5, 4)),
        "void expr30_grad(double x, double y, double z, double w, double *out);",
        "expr30_grad({x}, {y}, {z}, {w}, {out})",
        sized=False,
    ),
]
