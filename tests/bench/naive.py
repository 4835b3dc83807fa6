"""Programs as a newcomer writes them, their values and gradients, against C as an expert writes it.

The models and the C, value and gradient by hand, are in ``problems/naive``. Each is checked against the other in the
same run: two derivations of the same thing, one by rules, one on paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyad_contender import empty_cache, how_to_call, hyad
from measure import Contender, Native, alternate, build
from reference import GATE, error
from suite import FOLDER, Input

HERE = FOLDER / "naive"


@dataclass(frozen=True, eq=False)
class Program:
    """``sizes`` and ``work`` are what its C functions take after the inputs, as text over ``{n}`` and ``{work}``;
    ``low``, ``high`` bound the numbers drawn for each input."""

    name: str
    title: str
    size: int
    inputs: tuple[Input, ...]
    sizes: str
    room: Callable[[int], int]
    ranges: tuple[tuple[float, float], ...]

    def results(self, n: int) -> int:
        """How many numbers a gradient has, at least one."""
        return max(1, sum(i.count(n) for i in self.inputs if i.active))

    @property
    def stem(self) -> str:
        return self.name.replace("-", "_")

    def point(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """All inputs, one after the other."""
        parts = [rng.uniform(low, high, i.count(n)) for i, (low, high) in zip(self.inputs, self.ranges)]
        return np.concatenate(parts)

    def arguments(self, n: int, point: np.ndarray) -> list[Any]:
        """The inputs of a point as arrays and numbers."""
        found, at = [], 0
        for i in self.inputs:
            part = point[at : at + i.count(n)]
            found.append(part.reshape(i.shape(n)) if i.shape(n) else float(part[0]))
            at += i.count(n)
        return found


def vector(name: str, active: bool = True) -> Input:
    return Input(name, lambda n: (n,), active)


def number(name: str) -> Input:
    return Input(name, lambda n: ())


def rows(name: str, width: int) -> Input:
    return Input(name, lambda n: (n, width))


def square(name: str, active: bool = True) -> Input:
    return Input(name, lambda n: (n, n), active)


PROGRAMS = (
    Program(
        "attention", "softmax(Q K') V, n x 16", 64, (rows("q", 16), rows("k", 16), rows("v", 16)),
        "{n}, 16, {work}", lambda n: 2 * n + 16, ((-1, 1),) * 3,
    ),
    Program(
        "kalman", "a Kalman filter's likelihood, by two variances", 200,
        (number("q"), number("r"), vector("ys", False)), "{n}", lambda n: 0, ((0.1, 1), (0.5, 2), (-3, 3)),
    ),
    Program(
        "n-body", "potential energy of n bodies, by their places", 100, (rows("x", 3), vector("m", False)),
        "{n}", lambda n: 0, ((-1, 1), (0.1, 1)),
    ),
    Program(
        "lennard-jones", "energy of n atoms, each pair once, by their places", 60, (rows("x", 3),), "{n}",
        lambda n: 0, ((-3, 3),),
    ),
    Program(
        "charges", "energy of n charges, none with itself, by places and charges", 100, (rows("x", 2), vector("q")),
        "{n}", lambda n: 0, ((-1, 1), (0.1, 1)),
    ),
    Program(
        "forces", "squares of the pulls on n masses, a row each, by places and masses", 100,
        (rows("x", 2), vector("m")), "{n}, {work}", lambda n: 2 * n, ((-1, 1), (0.1, 1)),
    ),
    Program(
        "obstacles", "how deep points are in n discs, by points and discs", 150, (rows("points", 2), rows("discs", 3)),
        "{n}", lambda n: 0, ((-1, 1), (0, 0.5)),
    ),
    Program(
        "bumps", "squares of sums of n bumps at n points, by both", 150, (rows("points", 2), rows("bumps", 3)),
        "{n}, {work}", lambda n: n, ((-1, 1), (-1, 1)),
    ),
    Program(
        "heat", "ten steps of the heat equation, n x n, by its start", 64, (square("u"),),
        "{n}, {n}, {work}", lambda n: 2 * n * n, ((0, 1),),
    ),
    Program(
        "wave", "ten steps of the wave equation, n x n, by its start", 64,
        (square("u"), Input("c", lambda n: (), False)), "{n}, {n}, {work}", lambda n: 2 * n * n, ((0, 1), (0.1, 0.2)),
    ),
    Program(
        "binomial", "n American puts on a tree of 64 steps, by spot and volatility", 8,
        (number("spot"), number("sigma"), vector("strikes", False)), "{n}", lambda n: 0,
        ((90, 110), (0.1, 0.4), (80, 120)),
    ),
    Program(
        "black-scholes", "n calls, by spots and volatilities", 200,
        (vector("spot"), vector("sigma"), vector("strike", False), vector("years", False)), "{n}", lambda n: 0,
        ((90, 110), (0.1, 0.4), (80, 120), (0.2, 2)),
    ),
    Program(
        "hmm", "forward algorithm, 16 states, n steps", 50, (Input("steps", lambda n: (16, 16)), rows("seen", 16)),
        "{n}, 16, {work}", lambda n: 16 * 16 + 32 * n + 16, ((-4, 0), (-4, 0)),
    ),
    Program(
        "leapfrog", "ten leapfrog steps of n bodies, by their start", 40,
        (rows("x", 3), rows("v", 3), vector("m", False)), "{n}, {work}", lambda n: 36 * n, ((-1, 1), (-1, 1), (0.1, 1)),
    ),
    Program(
        "gray-scott", "ten steps of a reaction that diffuses, n x n, by its start", 64, (square("u"), square("v")),
        "{n}, {n}, {work}", lambda n: 24 * n * n, ((0, 1),) * 2,
    ),
    Program(
        "thomas", "n equations, a tridiagonal system, by all that is in them", 200,
        (vector("a"), vector("b"), vector("c"), vector("d")), "{n}, {work}", lambda n: 3 * n,
        ((-1, 1), (3, 4), (-1, 1), (-1, 1)),
    ),
    Program(
        "convolution", "four filters of 3 x 3 over n x n, the largest of each 2 x 2, by all numbers", 34,
        (square("x"), Input("w", lambda n: (4, 3, 3))), "{n}, {n}, 4, {work}", lambda n: 2 * n, ((-1, 1),) * 2,
    ),
    *(
        Program(
            name, f"a Gaussian process's likelihood at n points, {how}, by the kernel's three numbers", 100,
            (number("length"), number("scale"), number("noise"), Input("x", lambda n: (n, 3), False),
             vector("y", False)),
            "{n}, {work}", lambda n: 3 * n * n + 2 * n, ((0.5, 1), (0.5, 2), (0.3, 1), (-1, 1), (-2, 2)),
        )
        for name, how in (("gaussian-process", "Cholesky"), ("gaussian-process-inverse", "inverse"))
    ),
    *(
        Program(
            name, f"best path, 16 states, n steps{how}", 50, (Input("steps", lambda n: (16, 16)), rows("seen", 16)),
            "{n}, 16, {work}", lambda n: 16 * (n + 2), ((-4, 0), (-4, 0)),
        )
        for name, how in (("viterbi", ""), ("viterbi-table", ", a table filled in place"))
    ),
    Program(
        "crf", "a chain of labels, 16 states, n steps", 50,
        (Input("steps", lambda n: (16, 16)), rows("scores", 16), vector("tags", False)), "{n}, 16, {work}",
        lambda n: 16 * 16 + 33 * n + 32, ((-1, 1), (-1, 1), (0, 16)),
    ),
    Program(
        "causal", "attention to what came before, n x 16", 64, (rows("q", 16), rows("k", 16), rows("v", 16)),
        "{n}, 16, {work}", lambda n: 2 * n + 16, ((-1, 1),) * 3,
    ),
    Program(
        "masked", "the same by a mask", 64, (rows("q", 16), rows("k", 16), rows("v", 16)), "{n}, 16, {work}",
        lambda n: 2 * n + 16, ((-1, 1),) * 3,
    ),
    Program(
        "soft-dtw", "soft time warping of n and n numbers", 50, (vector("x"), vector("y")), "{n}, {n}, {work}",
        lambda n: 3 * n * n + n + 1, ((-1, 1), (-1, 1)),
    ),
    Program(
        "alignment", "best alignment, n x n, by what is alike and the price of a gap", 50,
        (Input("alike", lambda n: (n, n)), number("gap")), "{n}, {n}, {work}", lambda n: n * n // 8 + n + 2,
        ((-1, 1), (0.1, 0.5)),
    ),
    Program(
        "normal-rows", "the log likelihood of n rows of 16, by their mean and a factor of their covariance", 200,
        (Input("mean", lambda n: (16,)), Input("a", lambda n: (16, 16)), Input("x", lambda n: (n, 16), False)),
        "{n}, 16, {work}", lambda n: 4 * 16 * 16 + 2 * 16, ((-1, 1), (-1, 1), (-2, 2)),
    ),
    Program(
        "asian", "an Asian option, n paths of 64 steps, by the price and the volatility in each step", 1000,
        (number("spot"), Input("sigma", lambda n: (64,)), Input("z", lambda n: (n, 64), False)),
        "{n}, 64, {work}", lambda n: 64, ((98, 102), (0.005, 0.02), (-2, 2)),
    ),
    Program(
        "heston", "a call under Heston's model, n paths of 64 steps, by its six numbers", 1000,
        (*(number(x) for x in ("s0", "v0", "kappa", "theta", "xi", "rho")),
         Input("z1", lambda n: (n, 64), False), Input("z2", lambda n: (n, 64), False)),
        "{n}, 64, {work}", lambda n: 128,
        ((98, 102), (0.03, 0.05), (1, 2), (0.03, 0.05), (0.2, 0.4), (-0.7, -0.3), (-2, 2), (-2, 2)),
    ),
    Program(
        "clusters", "k-means by broadcasting, n points of 4, by 8 centres", 500,
        (Input("centres", lambda n: (8, 4)), Input("x", lambda n: (n, 4), False)), "8, {n}, 4", lambda n: 0,
        ((-1, 1), (-1, 1)),
    ),
    Program(
        "batch-norm", "normalised columns of n x 32, by all numbers", 64,
        (rows("x", 32), Input("gamma", lambda n: (32,)), Input("beta", lambda n: (32,))), "{n}, 32, {work}",
        lambda n: 64, ((-1, 1),) * 3,
    ),
    Program(
        "cox", "Cox's likelihood of n rows of 6", 200,
        (Input("b", lambda n: (6,)), Input("x", lambda n: (n, 6), False), vector("event", False)), "{n}, 6, {work}",
        lambda n: 2 * n, ((-1, 1), (-1, 1), (0, 1)),
    ),
    Program(
        "diffusion", "ten steps of diffusion, n x n, nothing declared, by its start and conductivity", 64,
        (square("u"), square("k")), "{n}, {n}, {work}", lambda n: 13 * n * n, ((0, 1),) * 2,
    ),
    Program(
        "jacobi", "ten sweeps of Jacobi, n x n, nothing declared, by the start and the right side", 64,
        (square("u"), square("f")), "{n}, {work}", lambda n: 2 * n * n, ((0, 1),) * 2,
    ),
    Program(
        "thomas-in-place", "n equations, a tridiagonal system in place, nothing declared", 200,
        (vector("a"), vector("b"), vector("c"), vector("d")), "{n}, {work}", lambda n: 3 * n,
        ((-1, 1), (3, 4), (-1, 1), (-1, 1)),
    ),
    Program(
        "spectrum", "the logarithms of n numbers' power spectrum, by the definition", 100,
        (vector("x"),), "{n}, {work}", lambda n: 2 * n, ((-1, 1),),
    ),
    Program(
        "bilateral", "a bilateral filter of n x n, nothing declared, by the image and both widths", 24,
        (square("image"), number("space"), number("range_"), square("target", False)), "{n}, {n}, {work}",
        lambda n: 25, ((0, 1), (1, 2), (0.2, 0.5), (0, 1)),
    ),
    Program(
        "blur", "n x n blurred by a Gaussian of radius 4, by the image and the width", 40,
        (square("image"), number("sigma"), square("target", False)), "{n}, {n}, {work}",
        lambda n: 2 * n * n + 3 * n + 16, ((0, 1), (1, 2), (0, 1)),
    ),
    Program(
        "shallow-water", "ten steps of shallow water on a torus of n x n, by rolls, by depth and momenta", 32,
        (square("h"), square("p"), square("q")), "{n}, {n}, {work}", lambda n: 39 * n * n,
        ((1, 1.2), (-0.1, 0.1), (-0.1, 0.1)),
    ),
    Program(
        "kpss", "a test for a unit root in n numbers, 20 lags", 300, (vector("x"),), "{n}, {work}",
        lambda n: 2 * n + 40, ((-1, 1),),
    ),
    Program(
        "garch", "a GARCH(1, 1) likelihood of n returns, nothing declared, by its four numbers", 1000,
        (*(number(x) for x in ("mu", "omega", "alpha", "beta")), vector("r", False)), "{n}", lambda n: 0,
        ((-0.1, 0.1), (0.1, 0.2), (0.05, 0.15), (0.7, 0.8), (-2, 2)),
    ),
    Program(
        "libor", "a swaption on n forward rates, 20 paths of 20 steps, by rates and volatilities", 40,
        (vector("rates"), vector("vol"), Input("z", lambda n: (20, 20), False)), "{n}, 20, 20, {work}",
        lambda n: 63 * n, ((0.04, 0.06), (0.1, 0.3), (-2, 2)),
    ),
    Program(
        "rays", "what n rays through a cloud of 12 x 12 x 12 see, by its densities", 100,
        (Input("density", lambda n: (12, 12, 12)), Input("at", lambda n: (n, 2), False), vector("seen", False)),
        "12, 12, 12, {n}, {work}", lambda n: 64, ((0, 0.5), (0.5, 9.5), (0, 1)),
    ),
    Program(
        "warp", "an image of n x n, warped by an offset for each pixel, by the offsets", 32,
        (square("a", False), square("b", False), Input("flow", lambda n: (n, n, 2))), "{n}, {n}", lambda n: 0,
        ((0, 1), (0, 1), (-1, 1)),
    ),
    Program(
        "crank-nicolson", "ten implicit steps of the heat equation by whole matrices, by n numbers and a ratio", 200,
        (vector("u"), number("r")), "{n}, {work}", lambda n: 14 * n, ((0, 1), (0.1, 2)),
    ),
    Program(
        "whittaker", "a smooth line through n numbers by whole matrices, by these and the smoothness", 200,
        (vector("y"), number("lam")), "{n}, {work}", lambda n: 5 * n, ((-1, 1), (0.1, 10)),
    ),
    Program(
        "bar", "a bar of n elements, added to a matrix in place, by forces and stiffness", 200,
        (vector("f"), vector("k")), "{n}, {work}", lambda n: 3 * n, ((-1, 1), (1, 2)),
    ),
    Program(
        "tracking", "a Kalman filter of n places in the plane by whole matrices, by both noises and the step", 200,
        (*(number(x) for x in ("q", "r", "dt")), Input("ys", lambda n: (n, 2), False)), "{n}", lambda n: 0,
        ((0.1, 1), (0.5, 2), (0.1, 1), (-3, 3)),
    ),
    Program(
        "barrier", "a barrier option by whole arrays, n paths of 32 steps, by spot and volatility", 400,
        (number("spot"), number("sigma"), Input("z", lambda n: (n, 32), False)), "{n}, 32", lambda n: 0,
        ((98, 102), (0.1, 0.4), (-2, 2)),
    ),
    Program(
        "sinkhorn", "optimal transport of n points in the plane, 20 turns in logarithms, by both", 40,
        (rows("x", 2), rows("y", 2)), "{n}, {work}", lambda n: 3 * n * n + 44 * n, ((-1, 1), (-1, 1)),
    ),
    Program(
        "swaps", "n swaps on a default, each to its own date, against their prices, by hazard and interest rates", 2000,
        (Input("h", lambda n: (6,)), number("r"), number("rec"), vector("spread", False), vector("quarters", False)),
        "{n}, {work}", lambda n: 300, ((0.01, 0.05), (0.01, 0.05), (0.3, 0.5), (0.01, 0.05), (1, 40.9)),
    ),
    Program(
        "phases", "the structure factors of n charges at 40 waves, by places and charges", 60,
        (rows("x", 3), vector("q"), Input("k", lambda n: (40, 3), False), Input("w", lambda n: (40,), False)),
        "{n}, 40, {work}", lambda n: 2 * n, ((-1, 1), (-1, 1), (-5, 5), (0, 1)),
    ),
    Program(
        "lines", "six half steps of heat, implicit along lines one way and the other, n x n, by start and step", 48,
        (square("u"), number("r")), "{n}, {work}", lambda n: 10 * n * n + 2 * n, ((0, 1), (0.2, 0.5)),
    ),
    Program(
        "ssim", "how alike two images of n x n are, by windows of 5 x 5, by one of them", 64,
        (square("x"), square("y", False)), "{n}, {work}", lambda n: n + 6 * n * n, ((0, 1), (0, 1)),
    ),
    Program(
        "conjugate", "ten steps of conjugate gradients for n unknowns, by the matrix and the right side", 80,
        (square("A"), vector("b")), "{n}, {work}", lambda n: n * n + 38 * n, ((-0.3, 0.3), (-1, 1)),
    ),
    Program(
        "brackets", "the least work of a product of n - 1 matrices, by their sizes: a table by the length of spans", 60,
        (vector("d"),), "{n}, {work}", lambda n: 3 * n * n, ((1, 9),),
    ),
)  # fmt: skip


def declarations(p: Program) -> dict[str, tuple[str, str]]:
    """For value and gradient by hand: the declaration and the call."""
    arrays = [f"const double *{i.name}" if i.shape(1) else f"double {i.name}" for i in p.inputs]
    sizes = p.sizes.split(", ")
    known = [f"long long size{k}" for k, s in enumerate(sizes) if s != "{work}"]
    work = ["double *work"] if "{work}" in sizes else []
    given = ", ".join("{" + i.name + "}" for i in p.inputs)
    extents = ", ".join(s for s in sizes if s != "{work}")
    room = ", {work}" if work else ""
    return {
        "value": (
            f"double {p.stem}_hand({', '.join([*arrays, *known, *work])});",
            f"{{out}}[0] = {p.stem}_hand({given}, {extents}{room})",
        ),
        "gradient": (
            f"void {p.stem}_grad_hand({', '.join([*arrays, *known, 'double *out', *work])});",
            f"{p.stem}_grad_hand({given}, {extents}, {{out}}{room})",
        ),
    }


def models() -> Any:
    return hyad.load(HERE / "models.hy")


def derived(p: Program, model: Any, what: str) -> Any:
    active = tuple(i.name for i in p.inputs if i.active)
    return model if what == "value" else hyad.grad(model, wrt=active if len(active) > 1 else active[0])


def race(p: Program, n: int, rounds: int, budget: float, folder: Path) -> dict[str, Any]:
    """Value and gradient: hyad's time over that by hand (wall clock, CPU), or how wrong it is."""
    rng = np.random.default_rng(1)
    bank = np.stack([p.point(n, rng) for _ in range(4)])
    found: dict[str, Any] = {}
    with empty_cache():
        module = models()
        for what, (declaration, call) in declarations(p).items():
            hand = Contender("hand", (HERE / "hand.c").read_text(), declaration, call, work=p.room(n))
            f = hyad.compile(derived(p, getattr(module, p.stem), what), args=p.arguments(n, bank[0])).cfunction
            prototype, own, work = how_to_call(f, p, n)  # type: ignore[arg-type]
            made = Contender(
                "hyad", f.source, prototype, own, work=work, header=(f"{f.name}.h", f.header), arena=f.arena
            )
            entries = {
                c.name: Native(build(c, p, n, folder / what), p, n, bank)  # type: ignore[arg-type]
                for c in (hand, made)
            }
            width = 1 if what == "value" else p.results(n)
            wrong = max(error(entries["hyad"](k)[:width], entries["hand"](k)[:width]) for k in range(len(bank)))
            if wrong > GATE:
                found[what] = f"wrong by {wrong:.1e}"
                continue
            t = alternate(entries, rounds, budget)["hyad"]
            found[what] = t.wall_ratio, t.cpu_ratio, t.nanoseconds
    return found
