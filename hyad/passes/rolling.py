"""Long recursion whose course is known, as loops over tables.

``(det a)`` of a 10 x 10 matrix, by minors  =>  for each size of minors one loop, which computes all of that size from
those of the size below; which ones each needs stands in a table of integers. The code grows with the size of a minor,
and not with how many there are.

First the call is *run*: integers, choices and the places of arrays' elements are known, so that a function is Python
text that computes with them, and makes a node of each operation on reals. Equal operations are one node, and equal
calls are made once: an array is the tuple of its elements' nodes. Then the nodes that one call has made by itself, its
*piece*, are compared with those of other calls: pieces of one *form*, whose other operands are of the same forms, are
the iterations of one loop. The operations and their order are those of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..core import (
    BOOL,
    INT,
    REAL,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Check,
    Const,
    Function,
    If,
    Loop,
    Prim,
    Type,
    Var,
    type_of,
)
from ..errors import Span
from ..program.builder import COMMUTATIVE, INT_MAX, Builder
from ..program.primitives import PRIMITIVES

NODES, TURNS = 60_000, 1_500_000  # operations on reals, and iterations and calls, that one call may make
ELEMENTS = 4096  # of an array that a call is given
DEEP = 64  # calls inside one another
SAVED = 4  # times fewer operations than nodes have to be left


class Unknown(Exception):
    """What is done depends on more than known integers."""


class TooLong(Exception):
    """It is known, and too much."""


# -------------------------------------------------------------------------------------------------- running


@dataclass(slots=True, eq=False)
class Piece:
    """Nodes that a call has made by itself, one after the other. It is finished when another call uses one of them:
    what the same call makes later is another piece, so that no two pieces need one another."""

    nodes: list[int] = field(default_factory=list)
    open: bool = True


@dataclass(slots=True)
class Node:
    """A real number: a constant, an element of an array outside, a number outside, or an operation on nodes.

    ``key`` is ``(Const,)``, ``(array, index ...)``, ``(Var,)``, or ``(name, node ...)``.
    """

    key: tuple
    piece: Piece | None = None
    soft: bool = False
    made: tuple[str, bool, Span | None] = ("t", False, None)  # how it is called, whether by a person, and where


class Run:
    """What calls with known integers do. A value is an ``int``, a ``bool``, the number of a node, or the tuple of an
    array's rows."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.nodes: list[Node] = []
        self.shared: dict[tuple, int] = {}
        self.made: dict[tuple, tuple] = {}
        self.texts: dict[Function, Callable[..., tuple]] = {}
        self.open: list[Piece] = []  # of the calls under way, the innermost last
        self.pieces: list[Piece] = []  # the finished ones, each after those that it needs
        self.turns = self.again = 0

    # ------------------------------------------------------------------------------------- values

    def outside(self, a: Atom) -> Any:
        """The value of an atom of the program around."""
        t = type_of(a)
        if isinstance(t, Arr):
            if any(type(d) is not Const for d in t.dims) or t.elem not in (REAL, INT, BOOL):
                raise Unknown
            dims = [d.value for d in t.dims]  # type: ignore[union-attr]
            if prod(dims) > ELEMENTS:
                raise Unknown
            return self.elements(a, dims, ())  # type: ignore[arg-type]
        if type(a) is Const:
            return self.constant(a) if t == REAL else a.value
        if t != REAL:
            raise Unknown
        return self.node((a,))

    def elements(self, a: Var, dims: Sequence[int], at: tuple[int, ...]) -> Any:
        if len(at) < len(dims):
            return tuple(self.elements(a, dims, (*at, i)) for i in range(dims[len(at)]))
        known: Atom | None = a
        for i in at:
            op = self.b.definitions.get(known)  # type: ignore[arg-type]
            known = op.args[i] if op is not None and op.name == "array" else None
        if type(known) is Const:
            return self.constant(known) if known.type == REAL else known.value
        if a.type.elem != REAL:  # type: ignore[union-attr]
            raise Unknown
        return self.node((a, *at))

    def constant(self, value: Const) -> int:
        return self.node((value,), (Const, self.b.key(value)))

    def real(self, value: int) -> int:
        return self.constant(Const(float(value), REAL))

    def node(self, key: tuple, equal: tuple | None = None) -> int:
        found = self.shared.get(equal or key)
        if found is None:
            found = self.shared[equal or key] = len(self.nodes)
            self.nodes.append(Node(key))
        return found

    def zeros(self, elem: Type, *dims: int) -> Any:
        value: Any = self.constant(Const(0.0, REAL, True)) if elem == REAL else 0
        if prod(dims) > ELEMENTS:
            raise TooLong
        for d in reversed(dims):
            value = (value,) * d
        return value

    # --------------------------------------------------------------------------------- operations

    def op(self, name: str, how: tuple[bool, tuple[str, bool, Span | None]], *args: int) -> int:
        """The node of an operation on nodes."""
        soft, made = how
        equal = (name, *sorted(args), soft) if name in COMMUTATIVE else (name, *args, soft)
        found = self.shared.get(equal)
        if found is not None:
            return found
        nodes = self.nodes
        if all(type(nodes[a].key[0]) is Const for a in args):
            folded = self.b.fold(name, *(nodes[a].key[0] for a in args))
            if folded is not None:
                return self.constant(folded)
        if len(nodes) >= NODES:
            raise TooLong
        piece = self.open[-1]
        if not piece.open:
            piece = self.open[-1] = Piece()
        for a in args:
            of = nodes[a].piece
            if of is not None and of.open and of is not piece:
                self.finish(of)
        self.shared[equal] = number = len(nodes)
        piece.nodes.append(number)
        nodes.append(Node((name, *args), piece, soft, made))
        return number

    def known(self, name: str, *args: tuple[Any, Type]) -> Any:
        """The integer or truth value that an operation gives."""
        consts = [self.nodes[x].key[0] if t == REAL else Const(x, t) for x, t in args]
        if any(type(c) is not Const for c in consts):
            raise Unknown
        folded = self.b.fold(name, *consts)
        if folded is None:
            raise Unknown
        return folded.value

    def finish(self, piece: Piece) -> None:
        if piece.open:
            piece.open = False
            if piece.nodes:
                self.pieces.append(piece)

    def call(self, f: Function, *args: Any) -> tuple:
        key = (f, args)
        found = self.made.get(key)
        if found is not None:
            self.again += 1
            return found
        if f.body is None or len(self.open) == DEEP:
            raise Unknown
        self.spend(1)
        run = self.texts.get(f)
        if run is None:
            run = self.texts[f] = Text(self).function(f)
        self.open.append(Piece())
        results = run(*args)
        self.finish(self.open.pop())
        self.made[key] = results
        return results

    def spend(self, count: int) -> None:
        self.turns += max(0, count)
        if self.turns > TURNS:
            raise TooLong


def fit(x: int) -> int:
    """An integer that is one in 64 bits."""
    if -INT_MAX <= x <= INT_MAX:
        return x
    raise Unknown


def put(rows: tuple, at: tuple[int, ...], x: Any) -> tuple:
    """Rows with one element, or row, replaced."""
    i, *rest = at
    return (*rows[:i], put(rows[i], tuple(rest), x) if rest else x, *rows[i + 1 :])


def unknown() -> None:
    raise Unknown


INLINE = {  # on integers and truth values
    "+": "fit({} + {})",
    "-": "fit({} - {})",
    "*": "fit({} * {})",
    "neg": "fit(-{})",
    "=": "{} == {}",
    "!=": "{} != {}",
    "<": "{} < {}",
    "<=": "{} <= {}",
    ">": "{} > {}",
    ">=": "{} >= {}",
    "and": "{} and {}",
    "or": "{} or {}",
    "not": "not {}",
}


class Text:
    """A function as Python text that runs it on the values of a ``Run``."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names: dict[Var, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.globals: dict[str, Any] = {
            "call": run.call,
            "op": run.op,
            "known": run.known,
            "real": run.real,
            "constant": run.constant,
            "zeros": run.zeros,
            "spend": run.spend,
            "fit": fit,
            "put": put,
            "unknown": unknown,
        }

    def function(self, f: Function) -> Callable[..., tuple]:
        head = f"def f({', '.join(map(self.name, f.params))}):"
        results = self.block(f.body)  # type: ignore[arg-type]
        text = "\n".join([head, *self.lines, f"    return {self.tuple(results)}"])
        try:
            exec(compile(text, f.name, "exec"), self.globals)
        except (SyntaxError, RecursionError) as e:  # loops too deep in one another for Python
            raise Unknown from e
        return self.globals["f"]

    def name(self, v: Var) -> str:
        return self.names.setdefault(v, f"v{len(self.names)}")

    def hold(self, value: Any) -> str:
        name = f"g{len(self.globals)}"
        self.globals[name] = value
        return name

    def atom(self, a: Atom) -> str:
        if type(a) is Const:
            return str(self.run.constant(a)) if a.type == REAL else repr(a.value)
        if a not in self.names:  # a function reads nothing but its parameters
            raise Unknown
        return self.names[a]  # type: ignore[index]

    def tuple(self, texts: Sequence[str]) -> str:
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def block(self, block: Block) -> list[str]:
        for bind in block.binds:
            self.bind(bind)
        return [self.atom(a) for a in block.results]

    def bind(self, bind: Bind) -> None:
        op = bind.op
        if type(op) is Prim:
            text = self.prim(op, bind)
            self.emit(f"{self.name(bind.vars[0])} = {text}")
        elif type(op) is If:
            names = [self.name(v) for v in bind.vars]
            self.emit(f"if {self.atom(op.cond)}:")
            self.inner(op.then, names)
            self.emit("else:")
            self.inner(op.orelse, names)
        elif type(op) is Loop:
            self.loop(op, bind)
        elif type(op) is Apply:
            args = [self.atom(a) for a in op.args]
            call = f"call({', '.join([self.hold(op.function), *args])})"
            self.emit(f"{''.join(self.name(v) + ', ' for v in bind.vars) or '_'} = {call}")
        elif type(op) is Check:
            a, b = self.atom(op.a), self.atom(op.b)
            self.emit(f"if not {f'0 <= {a} < {b}' if op.relation == 'in' else f'{a} {op.relation} {b}'}: unknown()")
        else:
            self.unknown(bind)

    def unknown(self, bind: Bind) -> None:
        self.emit("unknown()")
        for v in bind.vars:
            self.name(v)

    def inner(self, block: Block, names: Sequence[str]) -> None:
        """A region whose results get ``names``."""
        self.depth += 1
        results = self.block(block)
        self.emit(f"{', '.join(names)} = {', '.join(results)}" if names else "pass")
        self.depth -= 1

    def loop(self, op: Loop, bind: Bind) -> None:
        count, width = self.atom(op.count), len(op.accs)
        accs = [self.name(a) for a in op.accs]
        stacks = [f"{self.name(v)}_" for v in bind.vars[width:]]
        self.emit(f"spend({count})")
        if accs:
            self.emit(f"{', '.join(accs)} = {', '.join(map(self.atom, op.inits))}")
        for s in stacks:
            self.emit(f"{s} = []")
        self.emit(f"for {self.name(op.index)} in range({count}):")
        self.depth += 1
        results = self.block(op.body)
        for s, r in zip(stacks, results[width:]):
            self.emit(f"{s}.append({r})")
        self.emit(f"{', '.join(accs)} = {', '.join(results[:width])}" if accs else "pass")
        self.depth -= 1
        for v, acc in zip(bind.vars, accs):
            self.emit(f"{self.name(v)} = {acc}")
        for v, s in zip(bind.vars[width:], stacks):
            self.emit(f"{self.name(v)} = tuple({s})")

    def prim(self, op: Prim, bind: Bind) -> str:
        name, args, out = op.name, op.args, bind.vars[0]
        if name in PRIMITIVES:
            return self.scalar(op, bind)
        texts = [self.atom(a) for a in args]
        if name == "get":
            return f"{texts[0]}{''.join(f'[{i}]' for i in texts[1:])}"
        if name == "array":
            real = isinstance(out.type, Arr) and out.type.elem == REAL
            return self.tuple([f"real({x})" if real and type_of(a) == INT else x for x, a in zip(texts, args)])
        if name == "zeros":
            return f"zeros({', '.join([self.hold(out.type.elem), *texts])})"  # type: ignore[union-attr]
        if name == "select":
            return f"{texts[1]} if {texts[0]} else {texts[2]}"
        if name == "update":
            return f"put({texts[0]}, {self.tuple(texts[1:-1])}, {texts[-1]})"
        if name == "add-at" and type_of(args[-1]) == REAL:
            old = f"{texts[0]}{''.join(f'[{i}]' for i in texts[1:-1])}"
            how = self.hold((bind.soft, (out.name, False, bind.span)))
            return f"put({texts[0]}, {self.tuple(texts[1:-1])}, op('+', {how}, {old}, {texts[-1]}))"
        return "unknown()"

    def scalar(self, op: Prim, bind: Bind) -> str:
        types = tuple(map(type_of, op.args))
        texts = [self.atom(a) for a in op.args]
        typed = PRIMITIVES[op.name].result(types)  # type: ignore[arg-type]
        if typed is None:
            return "unknown()"
        wanted, result = typed
        out = bind.vars[0]
        if result == REAL:
            nodes = []
            for x, t, w in zip(texts, types, wanted):
                if t != REAL:
                    x = f"real({x})" if w == REAL else f"constant({self.hold(Const)}({x}, {self.hold(t)}))"
                nodes.append(x)
            how = self.hold((bind.soft, (out.name, out.given, bind.span)))
            return f"op({', '.join([repr(op.name), how, *nodes])})"
        if REAL not in types and op.name in INLINE and all(t == types[0] for t in types):
            return INLINE[op.name].format(*texts)
        pairs = [f"({x}, {self.hold(t)})" for x, t in zip(texts, types)]
        return f"known({', '.join([repr(op.name), *pairs])})"


# -------------------------------------------------------------------------------------------------- rolling


@dataclass(slots=True, eq=False)
class Form:
    """Pieces that do the same: the iterations of a loop. ``ops`` are the operations of one, each operand a constant, a
    number outside, the place of an earlier operation, or ``None``: it is read, from an array outside or from what
    another form makes. ``reads`` has, for each of those, from where and the columns of its subscripts."""

    nodes: list[int]  # of the first piece: names and places
    ops: list[tuple]
    sources: list[Var | tuple[Form, int]]
    columns: list[list[list[int]]]  # for each that is read, for each of its subscripts, one for each piece
    count: int = 0
    used: set[int] = field(default_factory=set)
    out: dict[int, Any] = field(default_factory=dict)  # what it has made: an array, or a number of one piece


class Rolled:
    """The pieces of a run, by form, and as loops."""

    def __init__(self, run: Run) -> None:
        self.run, self.b = run, run.b
        self.forms: dict[tuple, Form] = {}
        self.where: dict[int, tuple[Form, int, int]] = {}  # form, place in it, iteration
        for piece in run.pieces:
            self.add(piece)

    def add(self, piece: Piece) -> None:
        nodes = self.run.nodes
        local = {n: k for k, n in enumerate(piece.nodes)}
        ops: list[tuple] = []
        sources: list[Any] = []
        reads: list[tuple[int, ...]] = []
        for n in piece.nodes:
            name, *args = nodes[n].key
            operands: list[Any] = []
            for a in args:
                if a in local:
                    operands.append(local[a])
                    continue
                key = nodes[a].key
                if nodes[a].piece is not None:
                    form, place, k = self.where[a]
                    form.used.add(place)
                    operands.append(None)
                    sources.append((form, place))
                    reads.append((k,))
                elif len(key) == 1:
                    operands.append(key)
                else:
                    operands.append(None)
                    sources.append(key[0])
                    reads.append(key[1:])
            ops.append((name, nodes[n].soft, *operands))
        described = tuple(
            (name, soft, *(("key", self.b.key(x[0])) if type(x) is tuple else x for x in operands))
            for name, soft, *operands in ops
        )
        key = (described, *sources)
        form = self.forms.get(key)
        if form is None:
            form = Form(piece.nodes, ops, sources, [[[] for _ in at] for at in reads])
            self.forms[key] = form
        for columns, at in zip(form.columns, reads):
            for column, i in zip(columns, at):
                column.append(i)
        self.where.update((n, (form, k, form.count)) for k, n in enumerate(piece.nodes))
        form.count += 1

    def size(self) -> int:
        return sum(len(form.ops) for form in self.forms.values())

    def wanted(self, value: Any, t: Type) -> int:
        """Notes which nodes a result of the run is made of; how many numbers it takes to put it together."""
        if isinstance(t, Arr):
            parts = [self.wanted(x, t.item()) for x in value]
            return 1 if self.row(value, t) else sum(parts)
        if t == REAL and value in self.where:
            form, place, _ = self.where[value]
            form.used.add(place)
        return 1

    def row(self, value: tuple, t: Arr) -> tuple[Form, int, list[int]] | None:
        """The form, the place in it and the iterations that a row of numbers comes from, where it is one form."""
        if t.rank > 1 or t.elem != REAL or any(x not in self.where for x in value):
            return None
        found = [self.where[x] for x in value]
        form, place, _ = found[0]
        if form.count == 1 or any(x[:2] != (form, place) for x in found):
            return None
        return form, place, [k for _, _, k in found]

    def result(self, value: Any, t: Type, name: str) -> Atom:
        """A result of the run as an atom of the program."""
        if isinstance(t, Arr):
            row = self.row(value, t)
            if row is not None:
                form, place, at = row
                if at == list(range(form.count)):
                    return form.out[place]
                if len(at) > 1:
                    with self.b.inside(self.b.home(())):
                        table, out = self.table(at), form.out[place]
                    return self.b.build(
                        Const(len(at), INT), lambda i: self.b.get(out, self.subscript(table, i)), hint=name
                    )
            return self.b.array([self.result(x, t.item(), name) for x in value], name)
        if t != REAL:
            return Const(value, t)
        if value in self.where:
            form, place, k = self.where[value]
            return form.out[place] if form.count == 1 else self.b.get(form.out[place], Const(k, INT))
        array, *at = self.run.nodes[value].key
        return self.b.get(array, *(Const(i, INT) for i in at)) if at else array

    def write(self) -> None:
        """All forms, in order: a form is found after those that it needs."""
        for form in self.forms.values():
            used = sorted(form.used)
            if form.count == 1:
                made = self.iteration(form, None)
                form.out = {place: made[place] for place in used}
            elif used:
                names = [self.run.nodes[form.nodes[place]].made[0] for place in used]
                with self.b.inside(self.b.home(())):  # before the loops around
                    tables = [[self.table(c) for c in columns] for columns in form.columns]

                def body(i: Atom, form: Form = form, used: list = used, tables: list = tables):
                    made = self.iteration(form, i, tables)
                    return (), [made[place] for place in used]

                outs = self.b.loop(Const(form.count, INT), (), body, names, pruned=True)
                form.out = dict(zip(used, outs))

    def iteration(self, form: Form, i: Atom | None, tables: Sequence = ()) -> list[Atom]:
        """The operations of a piece, read at iteration ``i``; None where there is one."""
        b, soft = self.b, self.b.soft
        read = self.read(form, i, tables)
        made: list[Atom] = []
        for n, (name, soft_, *operands) in zip(form.nodes, form.ops):
            hint, given, b.span = self.run.nodes[n].made
            b.soft = soft_
            args = [next(read) if x is None else x[0] if type(x) is tuple else made[x] for x in operands]
            made.append(b.prim(name, *args, hint=hint, given=given))
        b.soft = soft
        return made

    def read(self, form: Form, i: Atom | None, tables: Sequence) -> Iterator[Atom]:
        """What the operations of a piece read, one after the other."""
        for source, columns, of in zip(form.sources, form.columns, tables or form.columns):
            if i is None:
                at: list[Atom] = [Const(column[0], INT) for column in columns]
            else:
                at = [self.subscript(table, i) for table in of]
            if type(source) is tuple:
                other, place = source
                yield other.out[place] if other.count == 1 else self.b.get(other.out[place], *at)
            else:
                yield self.b.get(source, *at)  # type: ignore[arg-type]

    def table(self, column: Sequence[int]) -> Atom | tuple[int, int]:
        """What a subscript is in each iteration: an array, or (start, step)."""
        step = column[1] - column[0]
        if all(x == column[0] + k * step for k, x in enumerate(column)):
            return column[0], step
        return self.b.array([Const(x, INT) for x in column], "at")

    def subscript(self, table: Atom | tuple[int, int], i: Atom) -> Atom:
        if type(table) is not tuple:
            return self.b.get(table, i)  # type: ignore[arg-type]
        start, step = table
        return self.b.prim("+", self.b.prim("*", i, Const(step, INT)), Const(start, INT))


class Course:
    """What a call does, when that is known: written as loops, or as straight-line code."""

    def __init__(self, run: Run, f: Function, results: tuple) -> None:
        self.run, self.b, self.f, self.results = run, run.b, f, results
        self.count = sum(len(p.nodes) for p in run.pieces)  # operations on reals
        self.again = run.again > 0  # whether equal calls were found

    def loops(self) -> list[Atom] | None:
        """The call's results, from loops over tables; None where these would not save most of the code."""
        made, span = Rolled(self.run), self.b.span
        named = list(zip(self.results, self.f.results))
        wanted = [made.wanted(value, r.type) for value, r in named]  # type: ignore[arg-type]
        if SAVED * (made.size() + sum(wanted)) > self.count:
            return None
        made.write()
        self.b.span = span
        return [made.result(value, r.type, r.name) for value, r in named]  # type: ignore[arg-type]

    def straight(self) -> list[Atom]:
        """The call's results, from one operation after the other."""
        b, span, soft, nodes = self.b, self.b.span, self.b.soft, self.run.nodes
        made: dict[int, Atom] = {}

        def value(n: int) -> Atom:
            """A constant, or what is read from outside, where it is first used."""
            if n not in made:
                (of, *at), here = nodes[n].key, b.span
                b.span = span
                made[n] = b.get(of, *(Const(i, INT) for i in at)) if at else of
                b.span = here
            return made[n]

        for n, node in enumerate(nodes):
            if node.piece is not None:
                name, *args = node.key
                hint, given, b.span = node.made
                b.soft = node.soft
                made[n] = b.prim(name, *map(value, args), hint=hint, given=given)
        b.span, b.soft = span, soft

        def result(x: Any, t: Type, name: str) -> Atom:
            if isinstance(t, Arr):
                return b.array([result(y, t.item(), name) for y in x], name)
            return value(x) if t == REAL else Const(x, t)

        return [result(x, r.type, r.name) for x, r in zip(self.results, self.f.results)]  # type: ignore[arg-type]


def course(b: Builder, f: Function, args: Sequence[Atom]) -> Course | None:
    """What a call of ``f`` does; None where that depends on more than integers. Raises ``TooLong``."""
    run = Run(b)
    try:
        results = run.call(f, *map(run.outside, args))
    except (Unknown, ArithmeticError, ValueError, IndexError, RecursionError):
        return None
    empty = any(isinstance(r.type, Arr) and not filled(x, r.type) for x, r in zip(results, f.results))
    return None if empty else Course(run, f, results)


def filled(value: Any, t: Type) -> bool:
    """Whether an array has elements."""
    return not isinstance(t, Arr) or len(value) > 0 and filled(value[0], t.item())
