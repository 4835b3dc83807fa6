"""Scalar operations as a graph: to SymPy and back, and the comparison of two forms of one value at sampled points.

What ``simplify`` stands on. How to read the file: ``Graph``, operations with equal ones shared; ``lift`` and
``lower``, constants to SymPy and expressions back; ``Points``, where and how closely a rewrite must agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..core import INT, REAL, Atom, Const, Var
from ..program.primitives import PRIMITIVES, sympy_form

EPS = 2.0**-52
#: What SymPy may give back at most, in nodes.
GIVEN_BACK = 2000

#: What SymPy knows the algebra of. Every other primitive is a function that it knows nothing about.
KNOWN = frozenset(
    "+ - * / neg square ** sqrt exp log sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh abs sign"
    " floor ceil".split()
)
OPERATORS = frozenset("+ - * / neg square ** sqrt".split())


# ----------------------------------------------------------------------------------------------- graph


class Graph:
    """Scalar operations, equal ones shared. An id stands for a value; operands have smaller ids.

    ``ops[id]`` is a ``Var``, a ``Const`` or ``(primitive, operand ids ...)``.
    """

    def __init__(self) -> None:
        self.ops: list[Any] = []
        self.ids: dict[Any, int] = {}

    def leaf(self, atom: Atom) -> int:
        key = ("const", atom.type, repr(atom.value), atom.soft) if type(atom) is Const else atom
        return self.enter(key, atom)

    def number(self, value: float) -> int:
        return self.leaf(Const(float(value), REAL))

    def add(self, name: str, *args: int) -> int:
        key = (name, *sorted(args)) if name in ("+", "*") else (name, *args)
        return self.enter(key, (name, *args))

    def enter(self, key: Any, op: Any) -> int:
        found = self.ids.get(key)
        if found is None:
            found = self.ids[key] = len(self.ops)
            self.ops.append(op)
        return found

    def reach(self, roots: Iterable[int]) -> list[int]:
        """The ids that ``roots`` need, operands first."""
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i not in seen:
                seen.add(i)
                if type(self.ops[i]) is tuple:
                    stack.extend(self.ops[i][1:])
        return sorted(seen)

    def cost(self, roots: Iterable[int], given: Iterable[int] = ()) -> int:
        """The weighted operations of ``roots``; those that ``given`` needs as well cost nothing."""
        free = set(self.reach(given))
        ops = (self.ops[i] for i in self.reach(roots) if i not in free)
        return sum(PRIMITIVES[op[0]].cost for op in ops if type(op) is tuple)

    def leaves(self, roots: Iterable[int]) -> list[int]:
        return [i for i in self.reach(roots) if type(self.ops[i]) is Var]

    def text(self, root: int, names: dict[int, str]) -> str:
        """``root`` in infix notation; ``names`` says which values have names."""
        level = {"+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "**": 4}
        room = 40  # shared values are written out: without a bound, a text may be exponential

        def go(i: int, outer: int, named: bool = True) -> str:
            nonlocal room
            op = self.ops[i]
            room -= 1
            if room < 0:
                return "..."
            if named and i in names:
                return names[i]
            if type(op) is Var:
                return op.name
            if type(op) is Const:
                return repr(op.value).removesuffix(".0")
            own = level.get(op[0], 9)
            if op[0] == "neg":
                text = f"-{go(op[1], 3)}"
            elif own < 9:
                left, right = go(op[1], own + (op[0] == "**")), go(op[2], own + (op[0] != "**"))
                text = f"{left} {op[0]} {right}" if own == 1 else f"{left}{op[0]}{right}"
            else:
                text = f"{op[0]}({', '.join(go(a, 0) for a in op[1:])})"
            return f"({text})" if own < outer else text

        return go(root, 0, named=False)

    def evaluate(
        self, ids: Sequence[int], points: dict[int, np.ndarray], rng: np.random.Generator | None = None
    ) -> dict[int, Any]:
        """The values of ``ids`` (closed under operands, in order) at ``points``, an array per leaf. With ``rng``
        every operand and result is off by a random unit in the last place."""
        values: dict[int, Any] = {}

        def off(x: Any) -> Any:
            return x if rng is None else x * (1 + rng.uniform(-EPS, EPS, np.shape(x)))

        with np.errstate(all="ignore"):
            for i in ids:
                op = self.ops[i]
                if type(op) is Var:
                    values[i] = off(points[i])
                elif type(op) is Const:
                    values[i] = op.value
                else:
                    values[i] = off(PRIMITIVES[op[0]].python(*(values[a] for a in op[1:])))
        return values


# ----------------------------------------------------------------------------------- to SymPy and back


class NoForm(Exception):
    """SymPy gave something that the language has no form for."""


def lift(constant: Const) -> Any:
    """A constant as an exact SymPy number, or None: then a symbol stands for it. 0.1 is no 1/10, and a user's own 0
    does not make a product 0 (of an infinity)."""
    import sympy

    value = constant.value
    if constant.type == INT:
        return sympy.Integer(value)
    if not math.isfinite(value) or (value == 0 and not constant.soft):
        return None
    p, q = float(value).as_integer_ratio()
    return sympy.Rational(p, q) if abs(p) <= 1 << 20 and q <= 1 << 10 else None


def functions() -> dict[Any, str]:
    """The primitive that each of SymPy's function classes is."""
    import sympy

    x, y = sympy.symbols("x y", real=True)
    return {sympy_form(PRIMITIVES[n], *(x, y)[: len(PRIMITIVES[n].params)]).func: n for n in KNOWN - OPERATORS}


def lower(graph: Graph, expr: Any, where: dict[Any, int], calls: dict[Any, str]) -> int:
    """A SymPy expression as operations: few divisions, powers by multiplication. ``where`` has the symbols' ids,
    ``calls`` the functions' primitives. Raises ``NoForm``."""
    return Lowering(graph, where, calls).go(expr)


class Lowering:
    """Adds SymPy expressions to a graph; what is the same is added once."""

    def __init__(self, graph: Graph, where: dict[Any, int], calls: dict[Any, str]) -> None:
        self.graph, self.where, self.calls = graph, where, calls
        self.memo: dict[Any, int] = {}
        self.budget = GIVEN_BACK

    def go(self, e: Any) -> int:
        found = self.memo.get(e)
        if found is None:
            self.budget -= 1
            if self.budget < 0:
                raise NoForm("what SymPy gives back is too large")
            found = self.memo[e] = self.make(e)
        return found

    def make(self, e: Any) -> int:
        if e in self.where:
            return self.where[e]
        if e.is_Number or e.is_NumberSymbol:
            if not e.is_finite:
                raise NoForm(f"SymPy gives {e}")
            return self.graph.number(e)
        if e.is_Add:
            return self.sum(e)
        if e.is_Mul:
            return self.product(e)
        if e.is_Pow:
            return self.power(e.base, e.exp)
        name = self.calls.get(e.func)
        if name is None:
            raise NoForm(f"SymPy gives {e.func.__name__}, which the language has no form for")
        return self.graph.add(name, *map(self.go, e.args))

    def sum(self, e: Any) -> int:
        add = self.graph.add
        plus, minus = [], []
        for term in e.as_ordered_terms():
            (minus if term.as_coeff_Mul()[0] < 0 else plus).append(term)
        rest = [self.go(-t) for t in minus]
        total = self.go(plus[0]) if plus else add("neg", rest.pop(0))
        for t in plus[1:]:
            total = add("+", total, self.go(t))
        for t in rest:
            total = add("-", total, t)
        return total

    def product(self, e: Any) -> int:
        import sympy

        c, factors = e.as_coeff_mul()
        if not c.is_Rational:
            raise NoForm("SymPy gives a number that is not rational")
        above, below = [], []
        for f in factors:
            if f.is_Pow and f.exp.is_Number and f.exp.is_negative:
                below.append(self.go(f.base**-f.exp))
            else:
                above.append(self.go(f))
        sign, c = c < 0, abs(c)
        if c.q & (c.q - 1):
            below.append(self.graph.number(c.q))
            c = sympy.Integer(c.p)
        if c != 1 or not above:
            above.append(self.graph.number(c))
        total = self.times(above)
        if below:
            total = self.graph.add("/", total, self.times(below))
        return self.graph.add("neg", total) if sign else total

    def times(self, ids: list[int]) -> int:
        total = ids[0]
        for i in ids[1:]:
            total = self.graph.add("*", total, i)
        return total

    def power(self, base: Any, exponent: Any) -> int:
        add = self.graph.add
        if exponent.is_Rational and exponent.q <= 2 and abs(exponent) <= 16:
            p, b = abs(int(exponent.p)), self.go(base)
            if exponent.q == 2:
                root = add("sqrt", b)
                value = root if p == 1 else add("*", self.whole_power(b, p // 2), root)
            else:
                value = self.whole_power(b, p)
            return add("/", self.graph.number(1), value) if exponent < 0 else value
        if exponent.is_Integer:
            return add("**", self.go(base), self.graph.leaf(Const(int(exponent), INT)))
        return add("**", self.go(base), self.go(exponent))

    def whole_power(self, base: int, n: int) -> int:
        """A power by multiplication; ``n`` is 1 or more."""
        if n > 16:
            return self.graph.add("**", base, self.graph.leaf(Const(n, INT)))
        if n == 1:
            return base
        half = self.whole_power(base, n // 2)
        squared = self.graph.add("*", half, half)
        return self.graph.add("*", squared, base) if n % 2 else squared


# ---------------------------------------------------------------------------------- points, agreement


class Points:
    """Where an original is compared with its rewrites: random points of every magnitude from 1e-8 to 1e4, zeros,
    small whole numbers, equal and opposite coordinates, and the points where an intermediate value changes its sign.

    Design decision: the tolerance is the spread of the original when its operations are each off by a unit in the last
    place. A rewrite that loses accuracy is refused; one that is as good as the original is not.
    """

    def __init__(self, graph: Graph, roots: Sequence[int], samples: int, seed: int) -> None:
        self.graph, self.roots, self.seed = graph, list(roots), seed
        self.leaves = graph.leaves(roots)
        self.ids = graph.reach(roots)
        self.grounds = [(self.at(self.random(samples)), None)]
        self.crossed = set(self.ids)
        self.extend(self.ids)

    def at(self, rows: np.ndarray) -> dict[int, np.ndarray]:
        return dict(zip(self.leaves, rows))

    def random(self, samples: int) -> np.ndarray:
        """One row per leaf, one column per point."""
        rng, n, m = np.random.default_rng(self.seed), len(self.leaves), max(8, samples // 8)
        sign = rng.choice([-1.0, 1.0], (n, 2 * m))
        mixed = rng.uniform(-2, 2, (n, m))
        twins = rng.uniform(-2, 2, (n, m))
        for k in range(m if n > 1 else 0):
            i, j = rng.choice(n, 2, replace=False)
            twins[i, k] = twins[j, k] * (-1) ** k
        blocks = [
            rng.uniform(-2, 2, (n, m)),
            rng.uniform(0.1, 3, (n, m)),
            rng.uniform(0, 0.95, (n, m)),
            sign[:, :m] * 10 ** rng.uniform(-8, 4, (n, m)),
            sign[:, m:] * 10 ** rng.uniform(1, 4, (n, m)),
            rng.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], (n, m)),
            twins,
        ]
        for value in (
            0.0,
            1.0,
            -1.0,
            1e-6,
            1e4,
            -1e4,
            500.0,
            -500.0,
            1e200,
            -1e200,
            1e-200,
        ):  # one coordinate at a time
            one = rng.uniform(-2, 2, (n, 2 * n))
            one[np.arange(2 * n) % max(n, 1), np.arange(2 * n)] = value
            blocks.append(np.where(np.arange(2 * n) < n, one, np.where(one == value, one, np.abs(one))))
        far = mixed[:, : m // 2]
        return np.concatenate([*blocks, far, 10 * far, np.zeros((n, 1))], axis=1)

    def crossings(self, ids: Sequence[int]) -> np.ndarray | None:
        """Neighbouring points between which one of ``ids`` changes its sign: at a zero of a denominator, the edge of
        a logarithm's domain. Found along axes, by bisection to adjacent numbers."""
        n = len(self.leaves)
        if not n:
            return None
        sweep = np.array([-2.5, -1.25, -0.75, -0.3, 0.2, 0.6, 1.1, 1.75, 3.0])
        others = np.array([[0.75, 1.5], [-0.5, 0.25], [1.25, -1.5], [2.0, 0.5]])
        lines = 2
        grid = np.empty((n, n, lines, len(sweep)))  # [leaf, varied leaf, line, place]
        for k in range(n):
            grid[k] = others[k % 4][None, :, None] + 0.125 * (k // 4)
            grid[k, k] = sweep
        shape = grid.shape[1:]
        values = self.graph.evaluate(self.graph.reach(ids), self.at(grid.reshape(n, -1)))
        brackets: list[tuple[int, int, int]] = []  # id, flat place left, varied leaf
        for i in ids:
            v = np.broadcast_to(values[i], (math.prod(shape),)).reshape(shape)
            with np.errstate(all="ignore"):
                change = np.isfinite(v[..., :-1]) & np.isfinite(v[..., 1:]) & (v[..., :-1] * v[..., 1:] < 0)
            for varied, line, place in np.argwhere(change)[:6]:
                brackets.append((i, int(np.ravel_multi_index((varied, line, place), shape)), int(varied)))
        if not brackets:
            return None
        brackets = brackets[:160]
        flat = grid.reshape(n, -1)
        columns = np.arange(len(brackets))
        varied = np.array([b[2] for b in brackets])
        low = flat[:, [b[1] for b in brackets]].copy()
        high = flat[:, [b[1] + 1 for b in brackets]].copy()
        which = [b[0] for b in brackets]
        order = self.graph.reach(set(which))

        def signs(points: np.ndarray) -> np.ndarray:
            found = self.graph.evaluate(order, self.at(points))
            return np.array([np.broadcast_to(found[i], (len(brackets),))[k] for k, i in enumerate(which)])

        start = signs(low)
        for _ in range(64):
            middle = low.copy()
            middle[varied, columns] = (low[varied, columns] + high[varied, columns]) / 2
            left = np.signbit(signs(middle)) == np.signbit(start)
            low[varied[left], columns[left]] = middle[varied[left], columns[left]]
            high[varied[~left], columns[~left]] = middle[varied[~left], columns[~left]]
        return np.concatenate([low, high], axis=1)

    def extend(self, ids: Sequence[int]) -> None:
        rows = self.crossings([i for i in ids if type(self.graph.ops[i]) is tuple])
        if rows is not None:
            self.grounds.append((self.at(rows), None))

    def truth(self, k: int) -> tuple[dict[int, Any], dict[int, Any]]:
        """Values of the original at the k-th set of points, and the tolerances."""
        points, known = self.grounds[k]
        if known is None:
            values = self.graph.evaluate(self.ids, points)
            rng = np.random.default_rng(self.seed + 1)
            tolerance: dict[int, Any] = {}
            with np.errstate(all="ignore"):
                for i in self.ids:
                    tolerance[i] = 1e-14 * np.abs(values[i]) + 1e-150
                for _ in range(4):
                    noisy = self.graph.evaluate(self.ids, points, rng)
                    for i in self.ids:
                        spread = np.abs(noisy[i] - values[i])
                        tolerance[i] = np.fmax(tolerance[i], np.where(np.isnan(spread), np.inf, 20 * spread))
            known = values, tolerance
            self.grounds[k] = (points, known)
        return known

    def disagreement(self, old: int, new: int) -> str | None:
        """Why ``new`` cannot stand for ``old``; None if it agrees everywhere."""
        fresh = [i for i in self.graph.reach([new]) if i not in self.crossed]
        if fresh:
            self.crossed.update(fresh)
            self.extend(fresh)
        order, finite = self.graph.reach([new]), 0
        for k, (points, _) in enumerate(self.grounds):
            values, tolerance = self.truth(k)
            size = len(next(iter(points.values()))) if points else 1
            a = np.broadcast_to(np.asarray(values[old], dtype=float), (size,))
            b = np.broadcast_to(np.asarray(self.graph.evaluate(order, points)[new], dtype=float), (size,))
            with np.errstate(all="ignore"):
                close = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= tolerance[old])
                same = close | (a == b) | (np.isnan(a) & np.isnan(b))
            finite += int(np.isfinite(a).sum())
            if not same.all():
                at = int(np.argmin(same))
                where = ", ".join(f"{self.graph.ops[i].name} = {points[i][at]:.6g}" for i in self.leaves[:4])
                more = ", ..." if len(self.leaves) > 4 else ""
                return f"at {where}{more} the value {a[at]:.6g} becomes {b[at]:.6g}"
        return None if finite >= 8 or not self.leaves else "too few points of its domain were found"
