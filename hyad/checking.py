"""``check_grad``: are a model's derivatives right at a point? Reverse mode, forward mode and finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import core
from .core import BOOL, INT, REAL, Arr, Leaf, Node, Program, Tree, leaves
from .differentiate.activity import differentiable
from .errors import DerivativeError, HyadError, ModelTypeError, border
from .frontend.annotations import parameters
from .marshalling import put_together, take_apart
from .model import Model, as_model, derived
from .program.data import Data
from .program.names import place_of
from .program.reader import deep
from .program.signature import Spec

MODES = 1e-9  # how far reverse and forward mode may be apart, relatively: rounding only
DIRECTIONS = 200  # so many inputs (and outputs) are looked at, at random if there are more
EPS = float(np.finfo(float).eps)
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
        verdict = (
            f"{count} derivative{' agrees' if count == 1 else 's agree'}"
            if self.ok
            else f"{wrong} of {count} derivatives disagree"
        )
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


@border
def check_grad(f: Any, args: Any, wrt: Any = None, tol: float = 1e-6, seed: int = 0) -> GradCheck:
    """Compare a model's derivatives at ``args`` (a tuple of arguments): reverse mode, forward mode, and differences.

    ``wrt`` as for ``grad``; by default every argument that is not an integer (an index, a size), or that is one by
    which there is a derivative all the same. An integer without is a count, and stays what it is. ``tol`` is the
    relative error allowed between derivatives and finite differences (Ridders' extrapolation, whose own error estimate
    is allowed besides). Gives a report that is true if all is well; raises only where the model itself
    cannot be called or differentiated.
    """
    model = as_model(f, "check_grad")
    if not isinstance(tol, (int, float)) or isinstance(wrt, (np.ndarray, float)):
        raise ModelTypeError("check_grad takes a model's arguments as one tuple", None, "check_grad(f, (x, y))")
    if not tol > 0:
        raise HyadError(f"tol is {tol!r}", None, "the relative error allowed is positive, such as 1e-6")
    given = list(args) if isinstance(args, (tuple, list)) else [args]
    args, program, at = prepare(model, given, wrt)
    point = Point(program, args, at)
    whole = np.concatenate([np.zeros(0, bool), *(integers(given[k]) for k in at)])
    whole = whole if whole.size == point.x.size else np.zeros(point.x.size, bool)
    random = np.random.default_rng(seed)
    columns, rows = some(point.x.size, random), some(point.result(model(*args)).size, random)
    if not columns or not rows:
        raise DerivativeError(f"{model.name} has no real argument, or no real result", model.span)
    jvp, vjp = derived("jvp", model, tuple(at)), derived("vjp", model, tuple(at))
    forward = np.array([point.result(jvp(*args, *point.tangents(j)))[rows] for j in columns]).T
    reverse = np.array([point.gradient(vjp(*args, point.cotangent(i)))[columns] for i in rows])
    moved = [c for c, j in enumerate(columns) if not whole[j] or forward[:, c].any() or reverse[:, c].any()]
    columns, forward, reverse = [columns[c] for c in moved], forward[:, moved], reverse[:, moved]
    if not columns:
        raise DerivativeError(f"{model.name} has no derivative by these integers", model.span, "give reals")
    limits = [ridders(lambda t, j=j: point.result(model(*point.moved(j, t)))[rows], point.x[j]) for j in columns]
    difference, doubt = np.array([d for d, _ in limits]).T, np.array([e for _, e in limits]).T
    scale = np.maximum(np.abs(forward), np.abs(difference))
    with np.errstate(all="ignore"):
        known = np.isfinite(difference) & (doubt <= 1e-2 * np.maximum(scale, 1e-3))
        modes = np.abs(reverse - forward) / (MODES * np.maximum(np.abs(forward), 1e-3 * np.abs(forward).max()) + 1e-300)
        modes[(reverse == forward) | (np.isnan(reverse) & np.isnan(forward))] = 0
        wrong = np.where(known, np.abs(forward - difference) / (tol * scale + 10 * doubt + 1e-3 * tol), 0)
    error = np.nan_to_num(np.maximum(modes, wrong), nan=np.inf, posinf=np.inf)
    results = point.labels(program.out, program.body.results, point.last, "")
    entries = [
        Entry(
            results[i],
            point.names[j],
            float(reverse[r, c]),
            float(forward[r, c]),
            float(difference[r, c]),
            float(error[r, c]),
        )
        for r, i in enumerate(rows)
        for c, j in enumerate(columns)
    ]
    entries.sort(key=lambda e: -e.error)
    return GradCheck(model.name, bool((error <= 1).all()), tuple(entries), int((~known).sum()))


def prepare(model: Model, args: list[Any], wrt: Any) -> tuple[list[Any], Program, list[int]]:
    """The arguments as they are differentiated (integers as reals), the typed program, and the positions to
    differentiate by."""
    known = parameters(model.value)
    names = [p[0] for p in known] if known else []
    if known is not None and len(known) != len(args):
        raise model.arity_error(len(args))
    if wrt is None:
        declared = [p[1] for p in known] if known else [None] * len(args)
        whole = [as_reals(a) if d is None else a for a, d in zip(args, declared)]
        try:
            program = model.program(model.specs(whole), plain=True)
        except HyadError:  # an integer that must be one
            whole, program = args, model.program(model.specs(args), plain=True)
        at = [k for k, part in enumerate(split(program.ins, program.params)) if any(real(p) for p in part)]
        return whole, program, at
    at = []
    for w in wrt if isinstance(wrt, (tuple, list)) else (wrt,):
        k = place_of(w, names)
        if not isinstance(k, int) or not -len(args) <= k < len(args):
            have = ", ".join(names) or f"positions 0 to {len(args) - 1}"
            raise DerivativeError(
                f"there is no parameter `{w}` to differentiate by", model.span, f"the parameters are {have}"
            )
        at.append(k % len(args))
    args = [as_reals(a) if k in at else a for k, a in enumerate(args)]
    return args, model.program(model.specs(args), plain=True), at


class Point:
    """A model's arguments, and the real numbers in those that it is differentiated by as one vector ``x``."""

    def __init__(self, program: Program, args: list[Any], at: list[int]) -> None:
        self.program, self.args, self.at = program, args, at
        self.params = split(program.ins, program.params)
        self.values = {k: apart(program.ins[k], args[k]) for k in at}
        self.x = flat([v for k in at for v, p in zip(self.values[k], self.params[k]) if real(p)])
        self.names = [n for k in at for n in self.labels(program.ins[k], self.params[k], self.values[k])]

    def rebuilt(self, vector: np.ndarray, moves: bool = False) -> list[Any]:
        """The arguments ``at`` with their reals from ``vector``; what is no real stays, or does not move."""
        made, start = [], 0
        for k in self.at:
            parts = []
            for v, p in zip(self.values[k], self.params[k]):
                if real(p):
                    size = numbers(v).size
                    v = filled(v, vector[start : start + size])
                    start += size
                elif moves and np.asarray(v).dtype != bool:
                    v = v * 0
                parts.append(v)
            made.append(put_together(self.program.ins[k], iter(parts)))
        return made

    def moved(self, j: int, t: float) -> list[Any]:
        """The arguments with the j-th number set to ``t``."""
        x = self.x.copy()
        x[j] = t
        args = list(self.args)
        for k, value in zip(self.at, self.rebuilt(x)):
            args[k] = value
        return args

    def tangents(self, j: int) -> list[Any]:
        """A tangent for each argument: the j-th unit vector."""
        moves = list(self.args)  # those of the others are not looked at
        for k, value in zip(self.at, self.rebuilt(np.eye(1, self.x.size, j)[0], moves=True)):
            moves[k] = value
        return moves

    def cotangent(self, i: int) -> Any:
        """The i-th unit vector in the structure of the result."""
        parts, start = [], 0
        for r, v in zip(self.program.body.results, self.last):
            piece = np.zeros(numbers(v).size)
            if r.type != BOOL and start <= i < start + piece.size:
                piece[i - start] = 1
            start += piece.size if r.type != BOOL else 0
            parts.append(filled(v, piece))
        return put_together(self.program.out, iter(parts))

    def result(self, value: Any) -> np.ndarray:
        """The numbers of a result, or of its tangent."""
        self.last = apart(self.program.out, value)
        return flat([v for v, r in zip(self.last, self.program.body.results) if r.type != BOOL])

    def gradient(self, value: Any) -> np.ndarray:
        """The numbers of the adjoints."""
        values = (value,) if len(self.at) == 1 else value
        return flat(
            [
                v
                for k, x in zip(self.at, values)
                for v, p in zip(apart(self.program.ins[k], x), self.params[k])
                if real(p)
            ]
        )

    def labels(self, tree: Tree, atoms: Sequence[Any], values: Sequence[Any], name: str | None = None) -> list[str]:
        """A name for each number: ``x``, ``v[2]``, ``p-0``; of a result ``[2]``."""
        found = []
        for k, (atom, value) in enumerate(zip(atoms, values)):
            if not real(atom) and (name is None or atom.type == BOOL):
                continue
            start = atom.name if name is None else name if isinstance(tree, Leaf) else f"{name}[{k}]"
            if isinstance(atom.type, core.Data):
                found += [f"{start} ({k})" for k in range(numbers(value).size)]
            elif np.ndim(value):
                found += [f"{start}[{' '.join(map(str, index))}]" for index in np.ndindex(np.shape(value))]
            else:
                found.append(start)
        return found


def ridders(f: Callable[[float], np.ndarray], x: float) -> tuple[np.ndarray, np.ndarray]:
    """The derivative of f at x from central differences of shrinking steps, extrapolated to step 0 (Ridders 1982),
    and its error estimate; each number of the result has the steps that suit it."""
    step = 0.02 * max(abs(x), 1.0)
    best: np.ndarray | None = None
    doubt = np.zeros(0)
    previous: list[np.ndarray] = []
    for k in range(10):
        with np.errstate(all="ignore"):
            above, below = f(x + step), f(x - step)
            row = [(above - below) / (2 * step)]
            rounding = EPS * np.maximum(np.abs(above), np.abs(below)) / step
            for m, old in enumerate(previous):
                row.append(row[m] + (row[m] - old) / (4.0 ** (m + 1) - 1))
            if best is None:
                best, doubt = row[0], np.full(row[0].shape, np.inf)
            for m in range(1, len(row)):
                error = np.maximum(np.abs(row[m] - row[m - 1]), np.abs(row[m] - previous[m - 1])) + rounding
                better = error < doubt
                best, doubt = np.where(better, row[m], best), np.where(better, error, doubt)
        previous, step = row, step / 2
    assert best is not None
    return best, doubt


def sample_args(model: Model, seed: int = 0, size: int = 3) -> list[Any]:
    """Arguments to try a model at: numbers between 0.5 and 1.5, open sizes ``size``, integers 1."""
    random = np.random.default_rng(seed)

    def sample(spec: Spec) -> Any:
        if isinstance(spec, Arr):
            shape = tuple(d if isinstance(d, int) else size for d in spec.dims)
            if spec.elem == REAL:
                return random.uniform(0.5, 1.5, shape)
            return np.ones(shape, np.int64 if spec.elem == INT else bool)
        if isinstance(spec, Node):
            return tuple(map(sample, spec.items))
        return {"Int": 1, "Bool": True}.get(getattr(spec, "name", "Real"), float(random.uniform(0.5, 1.5)))

    known = parameters(model.value)
    if known is None:
        raise ModelTypeError(f"{model.name} takes any number of arguments", model.span, "give some")
    return [sample(spec) for _, spec, _ in known]


def as_reals(value: Any) -> Any:
    """Integers as reals, in tuples, dicts and data too."""
    if type(value) is int:
        return float(value)
    if isinstance(value, Data):
        return filled(value, numbers(value))
    if type(value) is tuple:
        return tuple(map(as_reals, value))
    return {k: as_reals(v) for k, v in value.items()} if type(value) is dict else value


def integers(value: Any) -> np.ndarray:
    """Which of the numbers of an argument are given as integers, in the order of ``numbers``."""
    if isinstance(value, (Data, tuple)):
        return np.concatenate([np.zeros(0, bool), *map(integers, tuple(value))])
    if isinstance(value, dict):
        return integers(tuple(value.values()))
    if value is None or isinstance(value, bool):
        return np.zeros(0, bool)
    return np.full(np.size(value), type(value) is int)


def some(count: int, random: np.random.Generator) -> list[int]:
    """All of 0 .. count-1, or a random choice where that is too many."""
    if count <= DIRECTIONS:
        return list(range(count))
    return sorted(map(int, random.choice(count, DIRECTIONS, replace=False)))


def split(trees: Sequence[Tree], atoms: Sequence[Any]) -> list[Sequence[Any]]:
    """The atoms of each tree."""
    parts, start = [], 0
    for t in trees:
        parts.append(atoms[start : start + leaves(t)])
        start += leaves(t)
    return parts


def apart(tree: Tree, value: Any) -> list[Any]:
    values: list[Any] = []
    take_apart(tree, value, values)
    return values


def real(atom: Any) -> bool:
    return differentiable(atom.type)


def numbers(value: Any) -> np.ndarray:
    """The numbers of an array, or of data, in order."""
    if not isinstance(value, (Data, tuple)) and value is not None:
        return np.asarray(value, float).ravel()
    found: list[np.ndarray] = []
    todo = [value]
    while todo:
        x = todo.pop()
        if isinstance(x, (Data, tuple)):
            todo.extend(reversed(tuple(x)))
        elif x is not None and not isinstance(x, bool):
            found.append(np.asarray(x, float).ravel())
    return np.concatenate([np.zeros(0), *found])


def filled(value: Any, vector: np.ndarray) -> Any:
    """``value`` with its numbers from ``vector``."""
    rest = iter(vector)

    def walk(x: Any) -> Any:
        if isinstance(x, Data):
            return type(x)(*map(walk, x))
        if isinstance(x, tuple):
            return tuple(map(walk, x))
        if x is None or isinstance(x, bool):
            return x
        if np.ndim(x):
            return np.array([next(rest) for _ in range(np.size(x))]).reshape(np.shape(x))
        return float(next(rest))

    return deep(walk, value)


def flat(values: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *map(numbers, values)])
