"""The core language: flat, frozen records that every pass reads and writes.

One set of records serves two levels.

*Surface core*, what the reader makes of a form: ``Lambda``, ``Call``, ``If`` and ``Global`` names in A-normal form;
nothing is typed or resolved, and functions are values.

*Typed core*, what the specialiser makes of it for one signature, and what differentiation, the optimiser and the
printers of ``codegen`` work on: ``Prim``, ``If``, ``Loop`` and ``Check``, every variable typed. Tuples have been
taken apart (a binding binds several variables, a block gives several results) and known functions are inlined.

A ``Block`` is a flat sequence of bindings, never a nested ``let``. Every binder is a ``Var`` of its own: variables
are compared by identity, so no pass ever captures a name; names are for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Union

from .errors import Span

# ---------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A type of single values: ``Real``, ``Int`` (64 bits), ``Bool`` or ``Unit``; there is one object of each."""

    name: str

    def __repr__(self) -> str:
        return self.name


REAL, INT, BOOL, UNIT = Scalar("Real"), Scalar("Int"), Scalar("Bool"), Scalar("Unit")


@dataclass(frozen=True, slots=True)
class Arr:
    """A contiguous row-major array. Each dim is an ``Int`` atom: a ``Const`` is static, a ``Var`` a run-time number."""

    elem: Scalar
    dims: tuple[Atom, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def item(self, indices: int = 1) -> Type:
        """The type of what ``indices`` subscripts select."""
        return Arr(self.elem, self.dims[indices:]) if indices < len(self.dims) else self.elem

    def __repr__(self) -> str:
        return f"(Arr {self.elem} {' '.join(map(str, self.dims))})"


@dataclass(frozen=True, slots=True)
class Tuple:
    """A tuple's type in an annotation; typed core has none left."""

    items: tuple[Type, ...]


Type = Union[Scalar, Arr, Tuple]

# ---------------------------------------------------------------------------------------------- atoms


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A bound variable; identity is the name. ``type`` is None in surface core.

    ``given`` says that a person chose the name: printers keep a given variable and fold others into their use.
    """

    name: str
    type: Type | None = None
    span: Span | None = None
    given: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Const:
    """A literal. ``soft`` marks the zeros and ones that differentiation introduced: rules that would change NaN or
    infinity (``a*0 -> 0``) may fire on those alone."""

    value: Any
    type: Type | None = None
    soft: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A free name of a model, surface core only: a primitive, a prelude function or a value of the user's module."""

    name: str
    span: Span | None = None

    def __repr__(self) -> str:
        return self.name


Atom = Union[Var, Const, Global]

# ----------------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True, eq=False)
class Lambda:
    """``(fn [p ...] body)``; surface core. ``annotations`` run parallel to ``params``."""

    params: tuple[Var, ...]
    body: Block
    annotations: tuple[Any, ...] = ()
    name: str | None = None
    span: Span | None = None
    doc: str | None = None
    fast: bool = False  # :fast-math, rules that may lose a NaN or an infinity apply to its constants


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """``(f a ...)``; surface core. ``spans`` are the arguments' own places."""

    fn: Atom
    args: tuple[Atom, ...]
    spans: tuple[Span | None, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Prim:
    """A primitive of ``hyad.primitives`` or one of the array operations below; typed core.

    ==============================  =====================================================================
    ``get a i ...``                 an element, or a row (a view) where there are fewer subscripts than dims
    ``array x ...``                 ``[x ...]``: scalars, or arrays of one shape
    ``zeros``                       the zeros of the bound variable's type; args are its dims
    ``update a i ... x``            a copy of ``a`` with one element (or row) replaced
    ``add-at a i ... x``            a copy of ``a`` with ``x`` added to one element (or row)
    ``select c x y``                ``x`` or ``y``, both already computed; scalars only
    ``undef``                       a value that is never read, of the bound variable's type
    ==============================  =====================================================================

    Subscripts are in range: where that could not be proven a ``Check`` stands before. An ``update`` or ``add-at``
    whose array is used nowhere later is done in place; differentiation and the specialiser rely on that.
    """

    name: str
    args: tuple[Atom, ...]


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """Both blocks give as many results as the binding has variables; only the taken one is evaluated."""

    cond: Atom
    then: Block
    orelse: Block


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """The one loop: ``build``, ``ifold``, ``fold``, ``map`` and ``scan`` are cases of it.

    For ``index`` = 0 .. ``count``-1 the body maps the accumulators ``accs`` (at first ``inits``) to its first
    ``len(accs)`` results, the next accumulators; its further results are stacked. The binding's variables are the
    final accumulators, then the stacked arrays (a leading dim ``count``). ``build`` has no accumulators, ``ifold``
    nothing stacked.
    """

    count: Atom
    index: Var
    inits: tuple[Atom, ...]
    accs: tuple[Var, ...]
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Fails with ``message`` unless the relation ``"=="``, ``"<"`` or ``"<="`` holds between two ``Int`` atoms
    (``"in"``: 0 <= a < b). Binds nothing."""

    relation: str
    a: Atom
    b: Atom
    message: str
    kind: str = "bounds"  # or "shape": which error class to raise


Op = Union[Lambda, Call, Prim, If, Loop, Check]


@dataclass(frozen=True, slots=True, eq=False)
class Bind:
    """``vars = op``; ``span`` is the form that it came from."""

    vars: tuple[Var, ...]
    op: Op
    span: Span | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    binds: tuple[Bind, ...]
    results: tuple[Atom, ...]


# ------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True)
class Leaf:
    """One scalar or array of a structured argument or result."""


@dataclass(frozen=True, slots=True)
class Node:
    """A tuple (``keys`` None) or record (``keys`` its field names) of a structured argument or result.

    ``make`` rebuilds a record from its fields as keywords; None makes a ``dict``.
    """

    items: tuple[Tree, ...]
    keys: tuple[str, ...] | None = None
    make: Any = None


Tree = Union[Leaf, Node]
LEAF = Leaf()


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One typed function.

    ``params`` are flat; ``dims`` are the ``Int`` variables that stand in their types for sizes known at run time,
    in order of first occurrence. ``ins`` has one tree per argument of the user's function, ``out`` is the tree of
    its result; their leaves, left to right, are ``params`` and ``body.results``.
    """

    name: str
    params: tuple[Var, ...]
    dims: tuple[Var, ...]
    body: Block
    ins: tuple[Tree, ...]
    out: Tree
    span: Span | None = None
    doc: str | None = None
    names: tuple[str, ...] = ()  # of the results, where they have some: the adjoints of a gradient


def leaves(tree: Tree) -> int:
    """How many scalars and arrays a structure holds."""
    return 1 if isinstance(tree, Leaf) else sum(map(leaves, tree.items))


# ------------------------------------------------------------------------------------------ traversal


def blocks_of(op: Op) -> tuple[Block, ...]:
    """The regions inside an operation."""
    if isinstance(op, If):
        return (op.then, op.orelse)
    if isinstance(op, (Loop, Lambda)):
        return (op.body,)
    return ()


def atoms_of(op: Op) -> tuple[Atom, ...]:
    """The atoms that an operation reads itself, its regions left out."""
    if isinstance(op, Prim):
        return op.args
    if isinstance(op, If):
        return (op.cond,)
    if isinstance(op, Loop):
        return (op.count, *op.inits)
    if isinstance(op, Call):
        return (op.fn, *op.args)
    if isinstance(op, Check):
        return (op.a, op.b)
    return ()


def binders_of(op: Op) -> tuple[Var, ...]:
    """The variables that an operation binds inside its regions."""
    if isinstance(op, Loop):
        return (op.index, *op.accs)
    if isinstance(op, Lambda):
        return op.params
    return ()


def type_atoms(t: Type | None) -> tuple[Atom, ...]:
    return t.dims if isinstance(t, Arr) else ()


def free_vars(block: Block) -> dict[Var, None]:
    """The variables that a block reads and does not bind, in order of first use."""
    free: dict[Var, None] = {}
    bound: set[Var] = set()

    def use(atom: Atom) -> None:
        if isinstance(atom, Var) and atom not in bound:
            free[atom] = None

    def walk(b: Block) -> None:
        for bind in b.binds:
            for a in atoms_of(bind.op):
                use(a)
            bound.update(binders_of(bind.op))
            for inner in blocks_of(bind.op):
                walk(inner)
            for v in bind.vars:
                for a in type_atoms(v.type):
                    use(a)
            bound.update(bind.vars)
        for a in b.results:
            use(a)

    walk(block)
    return free


def all_binds(block: Block) -> Iterator[Bind]:
    """Every binding of a block and of the regions inside it, outer before inner."""
    stack = [iter(block.binds)]
    while stack:
        bind = next(stack[-1], None)
        if bind is None:
            stack.pop()
            continue
        yield bind
        for inner in reversed(blocks_of(bind.op)):
            stack.append(iter(inner.binds))


def size(block: Block) -> int:
    """The number of bindings, regions included: the measure of every linearity claim."""
    return sum(1 for _ in all_binds(block))


def substitute(block: Block, table: dict[Var, Atom]) -> Block:
    """A block with some of its free variables replaced; types keep their sizes."""

    def atom(a: Atom) -> Atom:
        return table.get(a, a) if type(a) is Var else a

    def one(bind: Bind) -> Bind:
        op = bind.op
        if type(op) is Prim:
            op = Prim(op.name, tuple(map(atom, op.args)))
        elif type(op) is If:
            op = If(atom(op.cond), substitute(op.then, table), substitute(op.orelse, table))
        elif type(op) is Loop:
            op = Loop(atom(op.count), op.index, tuple(map(atom, op.inits)), op.accs, substitute(op.body, table))
        else:
            assert type(op) is Check
            op = Check(op.relation, atom(op.a), atom(op.b), op.message, op.kind)
        return Bind(bind.vars, op, bind.span)

    return Block(tuple(map(one, block.binds)), tuple(map(atom, block.results)))
