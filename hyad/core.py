"""The core language: flat, frozen records that every pass reads and writes.

One set of records serves two levels.

*Surface core*, what the reader makes of a form: ``Lambda``, ``Call``, ``If``, ``Rec``, ``While``, ``Case`` and
``Global`` names in A-normal form; nothing is typed or resolved, and functions are values.

*Typed core*, what the specialiser makes of it for one signature, and what differentiation, the optimiser and the
printers of ``codegen`` work on: ``Prim``, ``If``, ``Loop``, ``While``, ``Case``, ``Make``, ``Apply`` and ``Check``,
every variable typed. Tuples have been taken apart (a binding binds several variables, a block gives several results),
known functions are inlined, references have become values that are handed on; recursion alone leaves functions.

A ``Block`` is a flat sequence of bindings, never a nested ``let``. Every binder is a ``Var`` of its own: variables
are compared by identity, so no pass ever captures a name; names are for people.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

from .errors import Span

#: No pass changes a record, and ``tests/frozen.py`` runs all of them with records that refuse: to make one of those
#: takes three times as long.
FROZEN = os.environ.get("HYAD_FREEZE") == "1"

# ---------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A type of single values: ``Real``, ``Int`` (64 bits), ``Bool`` or ``Unit``; there is one object of each."""

    name: str

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        """Pickled by its name in this module."""
        return self.name.upper()


#: So many numbers in a row are a point, a colour or a quaternion: single values, wherever they are.
ROW = 4

REAL, INT, BOOL, UNIT = Scalar("Real"), Scalar("Int"), Scalar("Bool"), Scalar("Unit")


@dataclass(slots=True, eq=False)
class Data:
    """A recursive data type: a value is made by one of its ``constructors``; identity is the name.

    Lists, sums, a user's ``defdata``, functions chosen at run time and the records of reverse mode are all such types.
    """

    name: str
    constructors: tuple[Constructor, ...] = ()

    def __repr__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Constructor:
    """One way to make a value of ``data``. ``fields`` are typed; a later field's array dims may be earlier fields.

    ``make`` says what it is in Python: None (nil), ``tuple`` (a pair), ``float`` or ``bool`` (a number or a truth value
    among pairs), a class of ``hyad.program.data``, ``"array"`` or ``"whole"`` (the one part itself); ``"function"`` or
    ``"record"`` for what never leaves a model. ``parts`` are the structures of its parts, whose leaves are the fields
    (but for the sizes of arrays); () where each part is one field.
    """

    name: str
    data: Data
    fields: tuple[Var, ...] = ()
    make: Any = None
    parts: tuple[Tree, ...] = ()

    @property
    def tag(self) -> int:
        return self.data.constructors.index(self)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=FROZEN, slots=True, unsafe_hash=True)
class Arr:
    """A contiguous row-major array. Each dim is an ``Int`` atom: a ``Const`` is static, a ``Var`` a run-time number."""

    elem: Scalar | Data
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


Type = Union[Scalar, Arr, Data, Tuple]

# ---------------------------------------------------------------------------------------------- atoms


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Var:
    """A bound variable; identity is the name. ``type`` is None in surface core.

    ``given`` says that a person chose the name: printers keep a given variable and fold others into their use.
    ``soft`` marks the index of a loop that differentiation introduced, over the directions of a derivative: what
    depends on it are tangents; and a function's result that is an adjoint, whose terms have no order of the user's.
    """

    name: str
    type: Type | None = None
    span: Span | None = None
    given: bool = False
    soft: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=FROZEN, slots=True, unsafe_hash=True)
class Const:
    """A literal. ``soft`` marks the zeros and ones that differentiation introduced: rules that would change NaN or
    infinity (``a*0 -> 0``) may fire on those alone. ``from_end`` marks a negative subscript that is written as one."""

    value: Any
    type: Type | None = None
    soft: bool = field(default=False, compare=False)
    from_end: bool = field(default=False, compare=False)

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

TRUE, FALSE = Const(True, BOOL), Const(False, BOOL)


def type_of(atom: Atom) -> Type:
    """The type of an atom of typed core."""
    return atom.type  # type: ignore[union-attr, return-value]


def real(value: float, soft: bool = False) -> Const:
    return Const(float(value), REAL, soft)


def integer(value: int) -> Const:
    return Const(int(value), INT)


ZERO, ONE = real(0.0, soft=True), real(1.0, soft=True)


def elem_of(a: Atom) -> Scalar | Data:
    """The type of a number, or of an array's elements."""
    t = type_of(a)
    return t.elem if isinstance(t, Arr) else t


def rank_of(a: Atom) -> int:
    """How many subscripts reach a number."""
    t = type_of(a)
    return t.rank if isinstance(t, Arr) else 0


def same(a: Atom, b: Atom) -> bool:
    """Whether two trip counts, sizes or subscripts are one variable, or equal numbers."""
    return a is b or type(a) is Const and type(b) is Const and a.value == b.value


def same_atoms(a: Sequence[Atom], b: Sequence[Atom]) -> bool:
    """The same of as many atoms."""
    return len(a) == len(b) and all(map(same, a, b))


def is_zero(atom: Atom) -> bool:
    return type(atom) is Const and atom.soft and atom.value == 0


def is_one(size: Atom | None) -> bool:
    """Whether a size is known to be 1: what has it is used for all of a larger size."""
    return type(size) is Const and size.value == 1


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
class Rec:
    """``(letrec [f (fn ..) g (fn ..)] ..)``: functions that see each other, one for each variable. Surface core."""

    functions: tuple[Lambda, ...]


@dataclass(frozen=FROZEN, slots=True, eq=False)
class While:
    """``(while c e ..)``: ``body`` again as long as ``cond`` gives true.

    In typed core nothing is set: ``cond`` and ``body`` see the accumulators ``accs`` (at first ``inits``); the first
    results of ``body`` are the next ones, its further results are stacked. The binding's variables are the final
    accumulators, the number of iterations (an ``Int``), and the stacked arrays, whose leading dim is that number.

    ``snapshots``: how many states reverse mode keeps of it (``:checkpoint n``); a mark that specialised programs lack.
    """

    cond: Block
    body: Block
    inits: tuple[Atom, ...] = ()
    accs: tuple[Var, ...] = ()
    snapshots: Atom | None = None


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Arm:
    """``(Node l r) e`` of a ``Case``: ``fields`` are bound in ``block``. In surface core the constructor is a name, or
    None, which takes what is left."""

    constructor: Global | Constructor | None
    fields: tuple[Var, ...]
    block: Block
    span: Span | None = None


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Case:
    """``(case e (inl x) a (inr y) b)`` and ``(match e (Leaf w) a (Node l r) b)``: the arm of ``value``'s constructor.

    In typed core there is an arm for every constructor of the type, in their order, and each arm's fields are
    variables of its own; all give as many results as the binding has variables.
    """

    value: Atom
    arms: tuple[Arm, ...]
    place: Span | None = None  # the value's, in surface core


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Prim:
    """A primitive of ``hyad.program.primitives`` or one of the array operations below; typed core.

    ==============================  =====================================================================
    ``get a i ...``                 an element, or a row (a view) where there are fewer subscripts than dims
    ``array x ...``                 ``[x ...]``: scalars, or arrays of one shape
    ``zeros``                       the zeros of the bound variable's type; args are its dims
    ``update a i ... x``            a copy of ``a`` with one element (or row) replaced
    ``add-at a i ... x``            a copy of ``a`` with ``x`` added to one element (or row)
    ``select c x y``                ``x`` or ``y``, both already computed; scalars only
    ``undef``                       a value that is never read, of the bound variable's type
    ``product a b n m l s t``       the ``n`` x ``m`` product of two matrices, ``l`` terms in each sum; ``s``, ``t``: of
                                    the transposes. Only where a BLAS is asked for (``products``)
    ==============================  =====================================================================

    Subscripts are in range: where that could not be proven a ``Check`` stands before. An ``update`` or ``add-at``
    whose array is used nowhere later is done in place; differentiation and the specialiser rely on that.
    """

    name: str
    args: tuple[Atom, ...]


@dataclass(frozen=FROZEN, slots=True, eq=False)
class If:
    """Both blocks give as many results as the binding has variables; only the taken one is evaluated."""

    cond: Atom
    then: Block
    orelse: Block
    place: Span | None = None  # the condition's, in surface core


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Loop:
    """The one loop: ``build``, ``ifold``, ``fold``, ``map`` and ``scan`` are cases of it.

    For ``index`` = 0 .. ``count``-1 the body maps the accumulators ``accs`` (at first ``inits``) to its first
    ``len(accs)`` results, the next accumulators; its further results are stacked. The binding's variables are the
    final accumulators, then the stacked arrays (a leading dim ``count``). ``build`` has no accumulators, ``ifold``
    nothing stacked. ``snapshots`` as in ``While``.
    """

    count: Atom
    index: Var
    inits: tuple[Atom, ...]
    accs: tuple[Var, ...]
    body: Block
    snapshots: Atom | None = None


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Check:
    """Fails with ``message`` unless the relation ``"=="``, ``"<"`` or ``"<="`` holds between two ``Int`` atoms
    (``"in"``: 0 <= a < b). Binds nothing."""

    relation: str
    a: Atom
    b: Atom
    message: str
    kind: str = "bounds"  # or "shape": which error class to raise


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Make:
    """A value of a data type from its fields; typed core."""

    constructor: Constructor
    args: tuple[Atom, ...]


@dataclass(slots=True, eq=False)
class Function:
    """A recursive function of typed core. It reads nothing but its ``params``: the sizes in their types are params too,
    before the arrays. ``results`` are the names and types of what it gives; a dim is a constant, a param or an earlier
    result. ``body`` is None while the function is being made."""

    name: str
    params: tuple[Var, ...]
    results: tuple[Var, ...] = ()
    body: Block | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Apply:
    """A call of a ``Function``; the binding has a variable for each of its results; typed core."""

    function: Function
    args: tuple[Atom, ...]


Op = Union[Lambda, Call, Rec, While, Case, Prim, If, Loop, Check, Make, Apply]


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Bind:
    """``vars = op``; ``span`` is the form that it came from.

    ``soft`` marks an operation on reals that differentiation made, or an ``add-at``: its terms have no order of the
    user's.
    """

    vars: tuple[Var, ...]
    op: Op
    span: Span | None = None
    soft: bool = False
    free: dict[Var, None] | None = field(default=None, init=False, repr=False)  # kept by ``reads``


@dataclass(frozen=FROZEN, slots=True, eq=False)
class Block:
    """``place``: in surface core, where the form stands whose value the result is."""

    binds: tuple[Bind, ...]
    results: tuple[Atom, ...]
    place: Span | None = None
    free: dict[Var, None] | None = field(default=None, init=False, repr=False)  # kept by ``free_vars``
    kinds: frozenset[type] | None = field(default=None, init=False, repr=False)  # kept by ``kinds_of``
    defined: frozenset[Var] | None = field(default=None, init=False, repr=False)  # kept by ``defined_in``
    flat: tuple[Bind, ...] | None = field(default=None, init=False, repr=False)  # kept by ``all_binds``


def given(bind: Bind) -> bool:
    """Whether a person named what a binding binds."""
    return bool(bind.vars) and bind.vars[0].given


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


def with_body(program: Program, body: Block) -> Program:
    """The program with another body; itself where that is its own."""
    return program if body is program.body else replace(program, body=body)


def leaves(tree: Tree) -> int:
    """How many scalars and arrays a structure holds."""
    return 1 if isinstance(tree, Leaf) else sum(map(leaves, tree.items))


def nodes(trees: Sequence[Tree]) -> list[Node]:
    """The tuples and records in some structures."""
    inner = [t for t in trees if isinstance(t, Node)]
    return [*inner, *(n for t in inner for n in nodes(t.items))]


# ------------------------------------------------------------------------------------------ traversal


def blocks_of(op: Op) -> tuple[Block, ...]:
    """The regions inside an operation."""
    kind = type(op)
    if kind is Prim:
        return ()
    if kind is If:
        return (op.then, op.orelse)
    if kind is Loop or kind is Lambda:
        return (op.body,)
    if kind is Rec:
        return tuple(f.body for f in op.functions)
    if kind is While:
        return (op.cond, op.body)
    if kind is Case:
        return tuple(arm.block for arm in op.arms)
    return ()


def atoms_of(op: Op) -> tuple[Atom, ...]:
    """The atoms that an operation reads itself, its regions left out."""
    kind = type(op)
    if kind is Prim or kind is Make or kind is Apply:
        return op.args
    if kind is If:
        return (op.cond,)
    if kind is Loop:
        return (op.count, *op.inits) if op.snapshots is None else (op.count, *op.inits, op.snapshots)
    if kind is While:
        return op.inits if op.snapshots is None else (*op.inits, op.snapshots)
    if kind is Call:
        return (op.fn, *op.args)
    if kind is Check:
        return (op.a, op.b)
    if kind is Case:
        return (op.value, *(arm.constructor for arm in op.arms if isinstance(arm.constructor, Global)))
    return ()


def binders_of(op: Op) -> tuple[Var, ...]:
    """The variables that an operation binds inside its regions."""
    kind = type(op)
    if kind is Prim:
        return ()
    if kind is Loop:
        return (op.index, *op.accs)
    if kind is Lambda:
        return op.params
    if kind is Rec:
        return tuple(p for f in op.functions for p in f.params)
    if kind is Case:
        return tuple(v for arm in op.arms for v in arm.fields)
    if kind is While:
        return op.accs
    return ()


def type_atoms(t: Type | None) -> tuple[Atom, ...]:
    """The sizes in a type."""
    return t.dims if type(t) is Arr else ()


def free_vars(block: Block) -> dict[Var, None]:
    """The variables that a block reads and does not bind, in order of first use. A block does not change and remembers
    them: they are not to be changed either."""
    if block.free is None:
        object.__setattr__(block, "free", _free_vars(block.binds, block.results))
    return block.free  # type: ignore[return-value]


def _free_vars(binds: Sequence[Bind], results: Sequence[Atom]) -> dict[Var, None]:
    free: dict[Var, None] = {}
    bound: set[Var] = set()
    for bind in binds:
        op = bind.op
        for a in atoms_of(op):
            if type(a) is Var and a not in bound:
                free[a] = None
        if type(op) is not Prim:
            bound.update(binders_of(op))
            if type(op) is Rec:
                bound.update(bind.vars)
            for inner in blocks_of(op):
                for a in free_vars(inner):
                    if a not in bound:
                        free[a] = None
        bound.update(bind.vars)  # a size may be one of them: how often a while went round
        for v in bind.vars:
            if type(v.type) is Arr:
                for a in v.type.dims:
                    if type(a) is Var and a not in bound:
                        free[a] = None
    for a in results:
        if type(a) is Var and a not in bound:
            free[a] = None
    return free


def reads(bind: Bind) -> dict[Var, None]:
    """The variables that a binding reads, in its regions too, and the sizes of what it makes, in order of first use. It
    remembers them: they are not to be changed."""
    if bind.free is None:
        object.__setattr__(bind, "free", _free_vars((bind,), ()))
    return bind.free  # type: ignore[return-value]


_STRAIGHT: frozenset[type] = frozenset()


def kinds_of(block: Block) -> frozenset[type]:
    """The kinds of operations in a block and the regions inside it, primitives aside. A block remembers them."""
    if block.kinds is None:
        found: set[type] = set()
        for bind in block.binds:
            op = bind.op
            if type(op) is not Prim:
                found.add(type(op))
                for inner in blocks_of(op):
                    found |= kinds_of(inner)
        object.__setattr__(block, "kinds", frozenset(found) if found else _STRAIGHT)
    return block.kinds  # type: ignore[return-value]


def all_binds(block: Block) -> Iterator[Bind]:
    """Every binding of a block and of the regions inside it, outer before inner. A block remembers them."""
    if block.flat is None:
        object.__setattr__(block, "flat", block.binds if not kinds_of(block) else tuple(_all_binds(block)))
    return iter(block.flat)  # type: ignore[arg-type]


def _all_binds(block: Block) -> Iterator[Bind]:
    stack = [iter(block.binds)]
    while stack:
        for bind in stack[-1]:
            yield bind
            if type(bind.op) is not Prim and (regions := blocks_of(bind.op)):
                stack.extend(iter(inner.binds) for inner in reversed(regions))
                break
        else:
            stack.pop()


def all_blocks(block: Block) -> Iterator[Block]:
    """A block and every region inside it, outer before inner."""
    yield block
    for bind in all_binds(block):
        yield from blocks_of(bind.op)


def binds_of(bind: Bind) -> Iterator[Bind]:
    """A binding and every one of the regions inside it."""
    return all_binds(Block((bind,), ()))


def defined_in(block: Block) -> frozenset[Var]:
    """Every variable that a block or a region inside it binds. A block remembers them."""
    if block.defined is None:
        found: set[Var] = set()
        stack = [block]
        while stack:
            for bind in stack.pop().binds:
                found.update(bind.vars)
                if type(bind.op) is not Prim:
                    found.update(binders_of(bind.op))
                    for inner in blocks_of(bind.op):
                        if inner.defined is None:
                            stack.append(inner)
                        else:
                            found |= inner.defined
        object.__setattr__(block, "defined", frozenset(found))
    return block.defined  # type: ignore[return-value]


def functions_of(*blocks: Block) -> list[Function]:
    """The functions that blocks call, themselves or through others, in order of first call."""
    found: dict[Function, None] = {}
    todo = list(reversed(blocks))
    while todo:
        for f in _called(todo.pop()):
            if f not in found:
                found[f] = None
                if f.body is not None:
                    todo.append(f.body)
    return list(found)


def _called(block: Block) -> Iterator[Function]:
    """The functions of the calls in a block, outer before inner; regions without calls are not looked at."""
    if Apply in kinds_of(block):
        for bind in block.binds:
            if type(bind.op) is Apply:
                yield bind.op.function
            elif type(bind.op) is not Prim:
                for inner in blocks_of(bind.op):
                    yield from _called(inner)


def uses(block: Block) -> dict[Var, int]:
    """How often each variable is read in a block and its regions."""
    counts: dict[Var, int] = {}

    def use(atoms: Sequence[Atom]) -> None:
        for a in atoms:
            if type(a) is Var:
                counts[a] = counts.get(a, 0) + 1

    stack = [block]
    while stack:
        b = stack.pop()
        use(b.results)
        for bind in b.binds:
            use(atoms_of(bind.op))
            for v in bind.vars:
                use(type_atoms(v.type))
            stack.extend(blocks_of(bind.op))
    return counts


def most_uses(block: Block, var: Var) -> int:
    """How often one run through a block reads ``var``, at most; a loop's body counts once."""
    total = sum(r is var for r in block.results)
    for bind in block.binds:
        total += sum(a is var for a in atoms_of(bind.op))
        inner = [most_uses(b, var) for b in blocks_of(bind.op)]
        total += max(inner, default=0) if type(bind.op) is If else sum(inner)
        total += sum(d is var for v in bind.vars if isinstance(v.type, Arr) for d in v.type.dims)
    return total


def count_uses(block: Block, var: Var) -> int:
    """How often a block and its regions read ``var``."""
    total = block.results.count(var)
    for bind in block.binds:
        total += atoms_of(bind.op).count(var)
        for inner in blocks_of(bind.op):
            if var in free_vars(inner):
                total += count_uses(inner, var)
        for v in bind.vars:
            if isinstance(v.type, Arr):
                total += v.type.dims.count(var)
    return total


def each_function(program: Program, transform: Callable[[Program], Program]) -> Program:
    """A pass over a program and over every function that it calls, each as a program of its own."""
    functions = functions_of(program.body)
    after = {f: transform(before) for f in functions if (before := as_program(f))}
    whole = transform(program)
    if whole is program and all(after[f].body is f.body for f in functions):
        return program
    made = {f: Function(f.name, f.params, f.results, None, f.span) for f in functions}
    for f, new in made.items():
        new.body = retarget(after[f].body, made)
    return replace(whole, body=retarget(whole.body, made))


def as_program(f: Function) -> Program:
    """A function as a program; its sizes are the program's."""
    assert f.body is not None
    sizes = {d for p in (*f.params, *f.results) for d in type_atoms(p.type) if type(d) is Var}
    dims = tuple(p for p in f.params if p in sizes)
    params = tuple(p for p in f.params if p not in sizes)
    out = Node((LEAF,) * len(f.body.results))
    return Program(f.name, params, dims, f.body, (LEAF,) * len(params), out, f.span)


def retarget(block: Block, table: dict[Function, Function]) -> Block:
    """A block that calls other functions in place of those in ``table``."""
    if Apply not in kinds_of(block):
        return block

    def one(bind: Bind) -> Bind:
        op = bind.op
        if type(op) is Apply:
            return Bind(bind.vars, Apply(table.get(op.function, op.function), op.args), bind.span)
        inner = tuple(retarget(b, table) for b in blocks_of(op))
        return Bind(bind.vars, with_blocks(op, inner), bind.span) if inner else bind

    return Block(tuple(map(one, block.binds)), block.results)


def with_blocks(op: Op, blocks: Sequence[Block]) -> Op:
    """An operation with other regions, in the order of ``blocks_of``."""
    if type(op) is If:
        return If(op.cond, *blocks)
    if type(op) is Loop:
        return Loop(op.count, op.index, op.inits, op.accs, *blocks, op.snapshots)
    if type(op) is While:
        return While(*blocks, op.inits, op.accs, op.snapshots)
    assert type(op) is Case
    return Case(op.value, tuple(Arm(a.constructor, a.fields, b, a.span) for a, b in zip(op.arms, blocks)))


def size(block: Block) -> int:
    """The number of bindings, regions included: the measure of every linearity claim."""
    return sum(1 for _ in all_binds(block))


def substitute(block: Block, table: Mapping[Var, Atom]) -> Block:
    """A block with some of its free variables replaced, in the sizes of its arrays too: one whose type changes is
    another variable. A primitive that reads none of them stays the same record."""
    return _Substitution(table).block(block)


class _Substitution:
    """A class, since functions that call each other from inside a function are garbage for the cyclic collector."""

    __slots__ = ("table",)

    def __init__(self, table: Mapping[Var, Atom]) -> None:
        self.table = dict(table)

    def atom(self, a: Atom) -> Atom:
        return self.table.get(a, a) if type(a) is Var else a

    def atoms(self, atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        table = self.table
        for a in atoms:
            if type(a) is Var and a in table:
                return tuple([table.get(a, a) if type(a) is Var else a for a in atoms])
        return atoms

    def bound(self, variables: tuple[Var, ...]) -> tuple[Var, ...]:
        for v in variables:
            if self.changed(v.type):
                return tuple(map(self.resized, variables))
        return variables

    def changed(self, t: Type | None) -> bool:
        return type(t) is Arr and any(type(d) is Var and d in self.table for d in t.dims)

    def resized(self, v: Var) -> Var:
        if not self.changed(v.type):
            return v
        self.table[v] = made = replace(v, type=Arr(v.type.elem, self.atoms(v.type.dims)))
        return made

    def block(self, block: Block) -> Block:
        return Block(tuple([self.one(bind) for bind in block.binds]), self.atoms(block.results))

    def one(self, bind: Bind) -> Bind:
        op = bind.op
        if type(op) is Prim:
            args = self.atoms(op.args)
            op = op if args is op.args else Prim(op.name, args)
        elif type(op) is If:
            op = If(self.atom(op.cond), self.block(op.then), self.block(op.orelse))
        elif type(op) is Loop:
            kept = None if op.snapshots is None else self.atom(op.snapshots)
            count, inits, accs = self.atom(op.count), self.atoms(op.inits), self.bound(op.accs)
            op = Loop(count, op.index, inits, accs, self.block(op.body), kept)
        elif type(op) is While:
            kept = None if op.snapshots is None else self.atom(op.snapshots)
            accs = self.bound(op.accs)
            op = While(self.block(op.cond), self.block(op.body), self.atoms(op.inits), accs, kept)
        elif type(op) is Case:
            arms = (Arm(a.constructor, self.bound(a.fields), self.block(a.block), a.span) for a in op.arms)
            op = Case(self.atom(op.value), tuple(arms))
        elif type(op) is Make:
            op = Make(op.constructor, self.atoms(op.args))
        elif type(op) is Apply:
            op = Apply(op.function, self.atoms(op.args))
        else:
            assert type(op) is Check
            op = Check(op.relation, self.atom(op.a), self.atom(op.b), op.message, op.kind)
        variables = self.bound(bind.vars)
        return bind if op is bind.op and variables is bind.vars else Bind(variables, op, bind.span, bind.soft)
