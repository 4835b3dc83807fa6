"""The entries of a Hessian as a sum of few products: like terms of a row collected."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core import (
    INT,
    ONE,
    REAL,
    ZERO,
    Atom,
    Bind,
    Loop,
    Prim,
    Var,
    defined_in,
    is_zero,
    reads,
    type_of,
)
from ..program.affine import affine_add
from ..program.builder import Builder
from ..program.dead import has_checks
from ..program.loops import slice_of
from ..program.primitives import PRIMITIVES
from ..program.rebuild import Rebuild

TERMS = 32  # a sum of more terms is left as it is
LENGTH = 4  # a row value is taken apart into so many others at most

Base = tuple[Var, ...]  # a product of variables, in the order of their bindings; () is 1


@dataclass(frozen=True, slots=True)
class Key:
    """What a term is a multiple of: ``tests`` hold, ``whole`` depends on row and column in a way that is not looked
    into, ``column`` depends on the inner index alone and ``row`` on the outer one."""

    tests: tuple[Var, ...] = ()
    whole: Var | None = None
    column: Base = ()
    row: Base = ()


@dataclass(frozen=True, slots=True)
class Term:
    """``factor`` times a key. ``exact``: the value of a variable itself, or a one; no product has been rounded yet."""

    factor: Atom
    exact: bool = False


Sum = dict[Key, Term]


@dataclass(slots=True)
class Entry:
    """How one result of an inner loop is made: ``by_row`` has the coefficient in the row of each product of column
    values, ``by_column`` the table (or variable) that each product of row values is multiplied with; ``wholes`` are
    what stands beside, with the variables that share a factor; ``diagonal`` stands where the column is ``at``."""

    by_row: dict[Base, Sum] = field(default_factory=dict)
    by_column: dict[Base, Sum] = field(default_factory=dict)
    wholes: list[tuple[tuple[Var, ...], Sum, list[tuple[bool, Var]]]] = field(default_factory=list)
    diagonal: dict[Var, tuple[Atom, Sum]] = field(default_factory=dict)
    tables: dict[Base, Atom] = field(default_factory=dict)
    cost: tuple[int, int] = (0, 0)  # operations in each entry, and in each row besides


class Collect(Rebuild):
    """Writes the entries of a Hessian as few products: what depends on the row alone is computed once in a row, what
    depends on the column alone once before them, and a term of the diagonal is added there.

    ``(build n (fn [j] (build n (fn [i] (+ (* c (* u_i b_j)) (* d (* w_i b_j)) (if (= i j) s_i 0))))))``  =>
    ``t = (build n (fn [i] (+ (* c u_i) (* d w_i))))``, then ``(build n (fn [j] (add-at (build n (fn [i] (* t_i b_j)))
    j s_j)))``.

    A tangent is a sum of products, linear in its direction; here the sums are multiplied out, like terms are put
    together, and of the products ``u_i v_j`` that are left the fewest factors are taken that meet them all: a vertex
    cover of the graph between row and column values.

    Design decision: only in a loop over directions of a derivative (its index is soft), and there only sums in
    which every term depends on the direction: these are tangents, not the user's own expressions. Multiplying out
    moves roundings; it never does so where two terms of the sum are still exact, a difference of two inputs say,
    whose cancellation is harmless as it stands and would not be after it.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.plans: dict[Var, Entry] = {}

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Loop:
            if op.index.soft:
                self.prepare(op)
            if any(v in self.plans for v in bind.vars):
                self.columns(op, bind)
                return
        self.copy(bind)

    def prepare(self, rows: Loop) -> None:
        """Plan the entries that the loops directly inside a loop over rows compute, and build their tables."""
        inside = {rows.index, *rows.accs, *defined_in(rows.body)}
        lines = [Lines(self, inside, length) for length in (1, LENGTH)]
        for bind in rows.body.binds:
            for line in lines:
                line.add(bind)
        for bind in rows.body.binds:
            op = bind.op
            if type(op) is not Loop or op.count in inside or has_checks(op.body):
                continue
            width = len(op.accs)
            chosen = [k for k in range(width, len(bind.vars)) if type_of(op.body.results[k]) == REAL]
            if not chosen:
                continue
            sums = [Sums(self, op, rows, line) for line in lines]
            entries = []
            for k in chosen:
                made = [e for s in sums if (e := s.entry(op.body.results[k])) is not None]
                if made:
                    entries.append(min(made, key=lambda e: e.cost))
                    self.plans[bind.vars[k]] = entries[-1]
            self.tabulate(op, entries)

    def tabulate(self, op: Loop, entries: list[Entry]) -> None:
        """The sums of column values, each in an array; a single value is read where it is."""
        wanted = [
            (entry, row, total)
            for entry in entries
            for row, total in entry.by_column.items()
            if len(total) > 1 or len(next(iter(total)).column) > 1
        ]
        if not wanted:
            return

        def body(i: Atom):
            self.here[op.index] = i
            needed = {v for _, _, total in wanted for key in total for v in key.column}
            self.block(slice_of(op.body, tuple(needed)))
            return (), [self.total(total, "column") for _, _, total in wanted]

        made = self.b.loop(self.atom(op.count), (), body, (), op.index.name, pruned=True)
        for (entry, row, _), table in zip(wanted, made):
            entry.tables[row] = table

    def total(self, terms: Sum, side: str) -> Atom:
        """The sum of factors times the row (column) values of their keys."""
        b, total = self.b, None
        for key, term in terms.items():
            value = self.product(term.factor, getattr(key, side))
            total = value if total is None else b.prim("+", total, value)
        return ONE if total is None else total

    def product(self, factor: Atom, base: Base) -> Atom:
        b = self.b
        if not base:
            return factor
        value = self.atom(base[0])
        for v in base[1:]:
            value = b.prim("*", value, self.atom(v))
        return b.prim("*", factor, value)

    def columns(self, op: Loop, bind: Bind) -> None:
        """The loop over the columns of one row, its entries made as planned."""
        b, width = self.b, len(op.accs)
        entries = {k: self.plans[v] for k, v in enumerate(bind.vars) if v in self.plans}
        scalars: dict[int, tuple[dict[Base, Atom], dict[Base, Atom], list[Atom | None]]] = {}
        for k, entry in entries.items():
            by_row = {column: self.total(total, "row") for column, total in entry.by_row.items()}
            by_column = {
                row: self.product(ONE if row in entry.tables else next(iter(total.values())).factor, row)
                for row, total in entry.by_column.items()
            }
            shared = [
                None if any(key.column for key in total) else self.total(total, "row") for _, total, _ in entry.wholes
            ]
            scalars[k] = by_row, by_column, shared

        def body(i: Atom, *accs: Atom):
            self.here[op.index] = i
            self.here.update(zip(op.accs, accs))
            results = list(self.block(op.body))
            for k, entry in entries.items():
                results[k] = self.cell(entry, i, *scalars[k])
            return results[:width], results[width:]

        names = [v.name for v in bind.vars]
        made = list(
            b.loop(
                self.atom(op.count),
                self.atoms(op.inits),
                body,
                names,
                op.index.name,
                [a.name for a in op.accs],
                bind.vars[0].given,
                pruned=True,
                soft=op.index.soft,
            )
        )
        for k, entry in entries.items():
            for at, total in entry.diagonal.values():
                where = self.here[op.index] = self.atom(at)
                self.block(slice_of(op.body, tuple({v for key in total for v in needs(key)})))
                made[k] = b.add_at(made[k], [where], self.whole_sum(total), bind.vars[k].name, True)
        b.span = bind.span
        self.define(bind, made)

    def cell(
        self,
        entry: Entry,
        i: Atom,
        by_row: dict[Base, Atom],
        by_column: dict[Base, Atom],
        shared: list[Atom | None],
    ) -> Atom:
        b = self.b
        total: Atom = ZERO
        for row, scalar in by_column.items():
            value = self.column_value(entry, row, i)
            total = b.prim("+", total, b.prim("*", scalar, value))
        for column, scalar in by_row.items():
            total = b.prim("+", total, self.product(scalar, column))
        for (tests, terms, wholes), factor in zip(entry.wholes, shared):
            if factor is None:
                factor = self.whole_sum(terms)
            value: Atom = ONE
            for at, (minus, v) in enumerate(wholes):
                value = self.atom(v) if at == 0 else b.prim("-" if minus else "+", value, self.atom(v))
            value = b.prim("*", factor, value)
            for test in tests:
                value = b.select(self.atom(test), value, ZERO)
            total = b.prim("+", total, value)
        return total

    def column_value(self, entry: Entry, row: Base, i: Atom) -> Atom:
        if row in entry.tables:
            return self.b.get(entry.tables[row], i)
        (key,) = entry.by_column[row]
        return self.product(ONE, key.column)

    def whole_sum(self, terms: Sum) -> Atom:
        """A sum with everything in its keys but the tests."""
        b, total = self.b, None
        for key, term in terms.items():
            value = self.product(self.product(term.factor, key.column), key.row)
            if key.whole is not None:
                value = b.prim("*", value, self.atom(key.whole))
            total = value if total is None else b.prim("+", total, value)
        return ONE if total is None else total


def needs(key: Key) -> Base:
    return key.column if key.whole is None else (*key.column, key.whole)


Line = dict[Base, Term]


class Lines:
    """The values of one region that depend on its index, as sums of products with what does not: each base has a
    factor that is computed outside. ``3 c b_j - (2 b_j) d`` is ``(3 c - 2 d)`` times ``b_j``.

    ``length`` is the number of bases that a sum may have; a longer one is a base itself.
    """

    def __init__(self, pass_: Collect, inside: set[Var], length: int = 1) -> None:
        self.pass_, self.inside, self.length = pass_, inside, length
        self.found: dict[Var, Line] = {}
        self.order: dict[Var, int] = {}
        self.definitions: dict[Var, Prim] = {}

    def fixed(self, a: Atom) -> bool:
        return type(a) is not Var or a not in self.inside

    def of(self, a: Atom) -> Line | None:
        """The sum that a value of the region is, None for others."""
        return self.found.get(a) if type(a) is Var else None

    def add(self, bind: Bind) -> None:
        for v in bind.vars:
            if v.type == REAL:
                line = self.line(bind.op)
                self.found[v] = line if line and len(line) <= self.length else {(v,): Term(ONE, True)}
                self.order[v] = len(self.order)
                if type(bind.op) is Prim:
                    self.definitions[v] = bind.op

    def line(self, op) -> Line | None:
        b, atom = self.pass_.b, self.pass_.atom
        if type(op) is not Prim or any(type_of(a) != REAL for a in op.args):
            return None
        lines = [self.of(a) for a in op.args]
        if op.name == "neg" and lines[0] is not None:
            return {base: Term(b.prim("neg", t.factor), t.exact) for base, t in lines[0].items()}
        if op.name == "*":
            for line, other in zip(lines, op.args[::-1]):
                if line is not None and self.fixed(other) and multipliable(line):
                    return {base: Term(b.prim("*", t.factor, atom(other))) for base, t in line.items()}
        if op.name == "/" and lines[0] is not None and self.fixed(op.args[1]) and multipliable(lines[0]):
            by = b.prim("/", ONE, atom(op.args[1]))
            return {base: Term(b.prim("*", t.factor, by)) for base, t in lines[0].items()}
        if op.name in ("+", "-") and None not in lines:
            return added(b, op.name, *lines)
        return None


def added(b: Builder, name: str, x: dict, y: dict) -> dict:
    """The sum or difference of two sums, like terms put together."""
    total = dict(x)
    for key, term in y.items():
        if key in total:
            total[key] = Term(b.prim(name, total[key].factor, term.factor))
        else:
            total[key] = term if name == "+" else Term(b.prim("neg", term.factor), term.exact)
    return total


class Sums:
    """The values in the body of a loop over columns, as sums of products of row values and column values."""

    def __init__(self, pass_: Collect, op: Loop, outer: Loop, rows: Lines) -> None:
        self.pass_, self.op, self.outer, self.rows = pass_, op, outer, rows
        self.columns = Lines(pass_, rows.inside)
        self.order = {v: k for k, v in enumerate(v for bind in op.body.binds for v in bind.vars)}
        self.definitions: dict[Var, Prim] = {}
        self.sums: dict[Var, Sum] = {}
        column: set[Var] = {op.index}  # of the body, on its index and on nothing else inside the rows
        for bind in op.body.binds:
            if type(bind.op) is Prim:
                self.definitions[bind.vars[0]] = bind.op
            if all(a in column or a not in rows.inside for a in reads(bind)):
                column.update(bind.vars)
                self.columns.add(bind)
            elif type(bind.op) is Prim and bind.vars[0].type == REAL:
                self.sums[bind.vars[0]] = self.expanded(bind.op, bind.vars[0])
        self.column = column

    def fixed(self, a: Atom) -> bool:
        return self.rows.fixed(a)

    def moving(self, a: Atom) -> Sum | None:
        """A value that depends on the row, as a sum; None where it does not."""
        if type(a) is not Var or a not in self.rows.inside:
            return None
        if a in self.sums:
            return self.sums[a]
        line = self.columns.of(a)
        if line is not None:
            return None
        line = self.rows.of(a)
        if line is not None:
            return {Key(row=base): term for base, term in line.items()}
        return {Key(whole=a): Term(ONE, True)}

    def expanded(self, op: Prim, v: Var) -> Sum:
        b = self.pass_.b
        whole: Sum = {Key(whole=v): Term(ONE, True)}
        if op.name == "select":
            test, x, y = op.args
            if is_zero(y) and test in self.definitions:
                inner = self.scaled(x)
                if inner is not None:
                    return {guard(key, test, self.order): term for key, term in inner.items()}
            return whole
        if any(type_of(a) != REAL for a in op.args):
            return whole
        if op.name == "neg":
            inner = self.moving(op.args[0])
            return whole if inner is None else {k: Term(b.prim("neg", t.factor), t.exact) for k, t in inner.items()}
        if op.name in ("+", "-"):
            x, y = map(self.moving, op.args)
            if x is None or y is None:
                return whole  # no tangent: a term does not depend on the direction
            total = added(b, op.name, x, y)
            return total if len(total) <= TERMS else whole
        if op.name == "*":
            for x, y in (op.args, op.args[::-1]):
                made = self.multiplied(x, y)
                if made is not None:
                    return made
        if op.name == "/":
            x, y = op.args
            inner = self.moving(x)
            if inner is not None and self.fixed(y) and multipliable(inner):
                by = b.prim("/", ONE, self.pass_.atom(y))
                return {k: Term(b.prim("*", t.factor, by)) for k, t in inner.items()}
        return whole

    def scaled(self, a: Atom) -> Sum | None:
        """Any value as a sum."""
        found = self.moving(a)
        if found is not None:
            return found
        line = self.columns.of(a)
        if line is not None:
            return {Key(column=base): term for base, term in line.items()}
        return {Key(): Term(self.pass_.atom(a), True)} if self.fixed(a) and type_of(a) == REAL else None

    def multiplied(self, x: Atom, y: Atom) -> Sum | None:
        """``x`` multiplied out with ``y``, one factor."""
        b = self.pass_.b
        inner = self.moving(x)
        by = self.scaled(y)
        if by is not None and len(by) > 1 and self.rows.of(y) is not None:
            by = {Key(row=(y,)): Term(ONE, True)}  # type: ignore[arg-type]
        if inner is None or by is None or len(by) != 1:
            return None
        if not multipliable(inner):
            if x not in self.sums:
                return None
            inner = {Key(whole=x): Term(ONE, True)}  # type: ignore[arg-type]
        ((other, term),) = by.items()
        if other.whole is not None or other.tests:
            return None
        made: Sum = {}
        for key, t in inner.items():
            if key.row and other.row and len(inner) > 1:
                return None  # not linear in the direction
            column = tuple(sorted((*key.column, *other.column), key=self.order.__getitem__))
            row = tuple(sorted((*key.row, *other.row), key=self.rows.order.__getitem__))
            new = Key(key.tests, key.whole, column, row)
            factor = b.prim("*", t.factor, term.factor)
            made[new] = Term(b.prim("+", made[new].factor, factor) if new in made else factor)
        return made

    # ------------------------------------------------------------------------------------------ a plan

    def entry(self, result: Atom) -> Entry | None:
        """The plan for one result, if it takes fewer operations than there are."""
        total = self.sums.get(result) if type(result) is Var else None
        if total is None or len(total) < 2:
            return None
        entry = Entry()
        edges: Sum = {}
        whole: dict[tuple[tuple[Var, ...], Var | None], Sum] = {}
        for key, term in total.items():
            if is_zero(term.factor):
                continue
            at = self.diagonal(key)
            if at is not None:
                bare = Key((), key.whole, key.column, key.row)
                entry.diagonal.setdefault(key.tests[0], (at, {}))[1][bare] = term
            elif key.tests or key.whole is not None:
                whole.setdefault((key.tests, key.whole), {})[Key((), None, key.column, key.row)] = term
            else:
                edges[key] = term
        self.group(entry, whole)
        cover(entry, edges)
        entry.cost = self.cost(entry), self.row_cost(entry)
        return entry if entry.cost[0] < self.operations([result]) else None

    def diagonal(self, key: Key) -> Atom | None:
        """The column that the only test of a term singles out, if it is one of the loop's."""
        if len(key.tests) != 1 or self.op.accs:
            return None
        test = self.definitions.get(key.tests[0])
        if test is None or test.name != "=" or any(type_of(a) != INT for a in test.args):
            return None
        b = self.pass_.b
        for x, at in (test.args, test.args[::-1]):
            if x is self.op.index and at is self.outer.index:
                rows, columns = self.pass_.atom(self.outer.count), self.pass_.atom(self.op.count)
                if b.nonnegative(affine_add(b.affine(columns), b.affine(rows), -1)):
                    return at
        return None

    def group(self, entry: Entry, whole: dict[tuple[tuple[Var, ...], Var | None], Sum]) -> None:
        """Variables with equal factors, up to sign, share one multiplication."""
        groups: dict[tuple, tuple[tuple[Var, ...], Sum, list[tuple[bool, Var]]]] = {}
        b = self.pass_.b
        for (tests, v), terms in whole.items():
            if v is None:
                groups[tests, None] = (tests, terms, [])
                continue
            parts = sorted(((k, t.factor) for k, t in terms.items()), key=lambda p: str((p[0].column, p[0].row)))
            same = (tests, tuple((k, b.key(f)) for k, f in parts))
            opposite = (tests, tuple((k, b.key(b.prim("neg", f))) for k, f in parts))
            if opposite in groups:
                groups[opposite][2].append((True, v))
            else:
                groups.setdefault(same, (tests, terms, []))[2].append((False, v))
        entry.wholes = list(groups.values())

    def operations(self, wanted: Sequence[Atom]) -> int:
        """What computing some values of the body costs in each iteration, column values aside."""
        return operations(wanted, self.definitions, self.column)

    def cost(self, entry: Entry) -> int:
        cost = 2 * (len(entry.by_row) + len(entry.by_column))
        for tests, terms, wholes in entry.wholes:
            cost += len(tests) + max(1, len(wholes)) + 1
            if any(key.column for key in terms):
                cost += sum(1 + len(key.column) + len(key.row) for key in terms)
        return cost + self.operations(
            [v for tests, _, wholes in entry.wholes for v in (*tests, *(w for _, w in wholes))]
        )

    def row_cost(self, entry: Entry) -> int:
        sums = [*entry.by_row.values(), *entry.by_column.values(), *(terms for _, terms, _ in entry.wholes)]
        keys = [key for terms in sums for key in terms]
        cost = sum(2 + len(key.row) for key in keys)
        return cost + operations([v for key in keys for v in key.row], self.rows.definitions, ())


def operations(wanted: Sequence[Atom], definitions: dict[Var, Prim], known: Container[Var]) -> int:
    """What computing some values costs where ``known`` ones are there."""
    cost, seen, stack = 0, set(), list(wanted)
    while stack:
        v = stack.pop()
        if type(v) is not Var or v in seen or v not in definitions or v in known:
            continue
        seen.add(v)
        op = definitions[v]
        if op.name != "get":
            cost += PRIMITIVES[op.name].cost if op.name in PRIMITIVES else 1
        stack.extend(op.args)
    return cost


def guard(key: Key, test: Var, order: dict[Var, int]) -> Key:
    tests = key.tests if test in key.tests else tuple(sorted((*key.tests, test), key=order.__getitem__))
    return Key(tests, key.whole, key.column, key.row)


def multipliable(terms: dict[Any, Term]) -> bool:
    """Whether multiplying out keeps the order of the error: no two terms are exact."""
    return sum(t.exact for t in terms.values()) < 2


def cover(entry: Entry, edges: Sum) -> None:
    """Spread the products of row and column values over the fewest factors that meet all of them (a matching of the
    graph between the two is as large as its smallest cover; Koenig)."""
    mate: dict[Base, Base] = {}  # column -> row
    rows: dict[Base, list[Base]] = {}
    for key in edges:
        if key.row and key.column:
            rows.setdefault(key.row, []).append(key.column)

    def augment(row: Base, seen: set[Base]) -> bool:
        for column in rows[row]:
            if column not in seen:
                seen.add(column)
                if column not in mate or augment(mate[column], seen):
                    mate[column] = row
                    return True
        return False

    for row in rows:
        augment(row, set())
    matched = set(mate.values())
    reached = {row for row in rows if row not in matched}
    columns: set[Base] = set()
    grown = True
    while grown:
        new = {c for row in reached for c in rows[row]} - columns
        columns |= new
        more = {mate[c] for c in new} - reached
        reached |= more
        grown = bool(new)
    for key, term in edges.items():
        if not key.column or (key.row and key.row in reached):
            entry.by_row.setdefault(key.column, {})[key] = term
        else:
            entry.by_column.setdefault(key.row, {})[key] = term
