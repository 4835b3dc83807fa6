"""dF~'s own experiments, with the rewrite rules switched on one after the other (dF~ Figs. 9 to 11).

Each experiment is a model that computes a derivative as forward mode gives it (NNMF: reverse), a direction at a time;
the yardstick is the derivative written by hand. Every step of the ladder is checked against it in the same run.
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

HERE = FOLDER / "ladder"
#: What each step adds to the one before; the last one is everything.
STEPS = {
    "as differentiated": (),
    "+ algebra, sharing": ("rules", "sharing"),
    "+ dead code": ("dead-code",),
    "+ fusion": ("fuse", "fuse-siblings", "meet"),
    "+ normalisation": ("one-hot",),
    "+ invariant motion": ("hoisting", "expand", "fission"),
    "+ all the rest": None,
}


@dataclass(frozen=True, eq=False)
class Experiment:
    """``call`` is that of the derivative written by hand; ``results(n)`` how many numbers it has, ``work(n)`` the room
    that it needs."""

    name: str
    title: str
    size: int
    inputs: tuple[Input, ...]
    declaration: str
    call: str
    results: Callable[[int], int]
    work: Callable[[int], int] = lambda n: 0
    sizes: tuple[int, ...] = ()  # where forward mode is compared with reverse mode
    low: float = 0.5


#: The sizes of vectors of the paper's Fig. 9.
SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)


def vector(name: str) -> Input:
    return Input(name, lambda n: (n,))


EXPERIMENTS = (
    Experiment(
        "dot-gradient", "gradient of a dot product", 1000, (vector("u"), vector("v")),
        "void dot_gradient_hand(const double *, const double *, long long, double *);",
        "dot_gradient_hand({u}, {v}, {n}, {out})", lambda n: n, sizes=SIZES,
    ),
    Experiment(
        "max-gradient", "gradient of the largest element", 1000, (vector("u"),),
        "void max_gradient_hand(const double *, long long, double *);",
        "max_gradient_hand({u}, {n}, {out})", lambda n: n, sizes=SIZES,
    ),
    Experiment(
        "add-jacobian", "Jacobian of a sum of vectors", 200, (vector("u"), vector("v")),
        "void add_jacobian_hand(const double *, const double *, long long, double *);",
        "add_jacobian_hand({u}, {v}, {n}, {out})", lambda n: n * n, sizes=SIZES[:3],
    ),
    Experiment(
        "scale-jacobian", "Jacobian of a scaled vector by the scale", 1000, (Input("s", lambda n: ()), vector("v")),
        "void scale_jacobian_hand(double, const double *, long long, double *);",
        "scale_jacobian_hand({s}, {v}, {n}, {out})", lambda n: n, sizes=SIZES,
    ),
    Experiment(
        "nnmf-gradient", "NNMF: gradient by H, 60 x 5 x n", 80,
        (Input("W", lambda n: (60, 5)), Input("H", lambda n: (5, n)), Input("A", lambda n: (60, n))),
        "void nnmf_gradient_hand(const double *, const double *, const double *, long long, long long, long long,"
        " double *, double *);",
        "nnmf_gradient_hand({W}, {H}, {A}, 60, 5, {n}, {out}, {work})", lambda n: 5 * n, lambda n: n,
    ),
    Experiment(
        "project-jacobian", "bundle adjustment's `project`: 2 n x 11 Jacobian", 100,
        (Input("c", lambda n: (11,)), Input("points", lambda n: (n, 3))),
        "void project_jacobian_hand(const double *, const double *, long long, double *);",
        "project_jacobian_hand({c}, {points}, {n}, {out})", lambda n: 22 * n,
    ),
)  # fmt: skip


def left_out() -> dict[str, list[str]]:
    """What each step of the ladder is compiled without."""
    on: set[str] = set()
    found = {}
    for step, more in STEPS.items():
        on.update(hyad.optimisations() if more is None else more)
        found[step] = [name for name in hyad.optimisations() if name not in on]
    return found


def race(e: Experiment, n: int, rounds: int, budget: float, folder: Path) -> list[tuple[str, Any]]:
    """Each step's times over those by hand (wall clock, CPU), or why there is none."""
    steps = {step: (e.name, off) for step, off in left_out().items()}
    return list(against_hand(e, n, steps, rounds, budget, folder).items())


def modes(e: Experiment, n: int, rounds: int, budget: float, folder: Path) -> dict[str, Any]:
    """The times of forward and of reverse mode, all optimisations on, over those by hand (wall clock, CPU)."""
    both = {"forward": (e.name, []), "reverse": (f"{e.name}-reverse", [])}
    return against_hand(e, n, both, rounds, budget, folder)


def against_hand(
    e: Experiment, n: int, models: dict[str, tuple[str, list[str]]], rounds: int, budget: float, folder: Path
) -> dict[str, Any]:
    """``models``: of each contender its model and what that is compiled without."""
    rng = np.random.default_rng(1)
    bank = rng.uniform(e.low, e.low + 1, (8, sum(i.count(n) for i in e.inputs)))
    hand = Contender("hand", (HERE / "hand.c").read_text(), e.declaration, e.call, work=e.work(n))
    made = [build(hand, e, n, folder)]  # type: ignore[arg-type]
    with empty_cache():
        module = hyad.load(HERE / "models.hy")
        for name, (model, off) in models.items():
            f = hyad.compile(getattr(module, model.replace("-", "_")), without=off).cfunction
            declaration, call, work = how_to_call(f, e, n)  # type: ignore[arg-type]
            c = Contender(name, f.source, declaration, call, work=work, header=(f"{f.name}.h", f.header))
            made.append(build(c, e, n, folder / name.replace(" ", "_")))  # type: ignore[arg-type]
    entries = {c.name: Native(c, e, n, bank) for c in made}  # type: ignore[arg-type]
    expected = entries["hand"](0)
    wrong = {name: error(entry(0), expected) for name, entry in entries.items()}
    timings = alternate({name: x for name, x in entries.items() if wrong[name] <= GATE}, rounds, budget)
    return {
        name: (timings[name].wall_ratio, timings[name].cpu_ratio) if name in timings else f"wrong by {wrong[name]:.1e}"
        for name in models
    }
