"""``check_grad``: are a model's derivatives right at a point? Reverse mode, forward mode and finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .core import BOOL, INT, REAL, Arr, Leaf, Node, Program, leaves
from .errors import DerivativeError, HyadError, ModelTypeError
from .model import Model, Spec, as_model, derived, parameters, put_together, take_apart

MODES = 1e-9  # how far reverse and forward mode may be apart, relatively: rounding only
DIRECTIONS = 200  # so many inputs (and outputs) are looked at, at random if there are more
LINES = 8  # of the report


@dataclass(frozen=True, slots=True)
class Entry:
    """One derivative, of ``result`` by ``argument``. ``error`` is what the three values are apart, relatively to what
    is allowed (more than 1: wrong)."""

    result: str
    argument: str
    reverse: float
    forward: float
    difference: float
    error: float


@dataclass(frozen=True, slots=True)
class GradCheck:
    """What ``check_grad`` found: true if all agree. ``entries`` has the worst first; ``skipped`` counts those where
    finite differences have no limit (a kink, the border of the domain), which only the two modes were compared at."""

    name: str
    ok: bool
    entries: tuple[Entry, ...]
    skipped: int

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        count, wrong = len(self.entries), sum(e.error > 1 for e in self.entries)
        verdict = f"{count} derivatives agree" if self.ok else f"{wrong} of {count} derivatives disagree"
        lines = [f"{self.name}: {verdict}; reverse mode, forward mode and finite differences"]
        lines.append(f"  {'':<24}{'reverse':>24}{'forward':>24}{'differences':>24}")
        for e in self.entries[:LINES]:
            label = f"{self.name}{e.result} by {e.argument}"
            mark = "  <--" if e.error > 1 else ""
            lines.append(f"  {label:<24}{e.reverse:>24.15g}{e.forward:>24.15g}{e.difference:>24.15g}{mark}")
        if count > LINES:
            lines.append(f"  and {count - LINES} more, closer")
        if self.skipped:
            lines.append(f"  {self.skipped} without a limit of differences: a kink or the border of the domain")
        return "\n".join(lines)

    __repr__ = __str__


def check_grad(f: Any, args: Sequence[Any], wrt: Any = None, tol: float = 1e-6, seed: int = 0) -> GradCheck:
    """Compare a model's derivatives at ``args`` (a tuple of arguments): reverse mode, forward mode, and differences.

    ``wrt`` as for ``grad``; by default every argument that is not an integer (an index, a size). ``tol`` is the
    relative error allowed between derivatives and finite differences (Ridders' extrapolation, whose own error
    estimate is allowed besides). Gives a report that is true if all is well; raises only where the model itself
    cannot be called or differentiated.
    """
    model = as_model(f, "check_grad")
    if not isinstance(args, (tuple, list)):
        args = (args,)
    args, program, at = prepare(model, list(args), wrt)
    point = Point(program, args, at)
    random = np.random.default_rng(seed)
    columns = some(len(point.x), random)
    rows = some(len(point.values(args)), random)
    if not len(rows) or not len(columns):
        raise DerivativeError(f"{model.name} has no real result to differentiate, or nothing to do it by", model.span)
    names = tuple(at)
    jvp, vjp = derived("jvp", model, names), derived("vjp", model, names)
    forward = np.array([point.flat_out(jvp(*args, *point.tangents(j)))[rows] for j in columns]).T
    reverse = np.array([point.flat_in(vjp(*args, point.cotangent(i)))[columns] for i in rows])
    estimates = [differences(lambda t, j=j: point.values(model_call(model, point.moved(j, t)))[rows], point.x[j]) for j in columns] if False else [
        ridders(lambda t, j=j: point.flat_out(model(*point.moved(j, t)))[rows], point.x[j]) for j in columns
    ]
    return report(model.name, point, rows, columns, reverse, forward, estimates, tol)
